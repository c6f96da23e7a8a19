"""``python -m hvd_sparse`` runs the command ``hvd-sparse``."""

import sys

from hvd_sparse.cli import main

sys.exit(main())
