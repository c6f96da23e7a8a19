"""Entry point of ``python -m hvd_sparse``: the command ``hvd-sparse``."""

import sys

from hvd_sparse.cli import main

sys.exit(main())
