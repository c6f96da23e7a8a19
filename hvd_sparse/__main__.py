"""``python -m hvd_sparse`` is the command ``hvd-sparse``."""

import sys

from .cli import main

sys.exit(main())
