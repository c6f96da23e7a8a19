"""Gradient sparsification for unmodified Horovod: send the few entries that matter, lose nothing.

The frontends are ``hvd_sparse.torch`` and ``hvd_sparse.tensorflow``; this package itself needs numpy only.
"""

from . import engines as _engines  # noqa: F401 - parts register themselves when they are imported
from .core import codecs as _codecs  # noqa: F401
from .core import exchanges as _exchanges  # noqa: F401
from .core import memories as _memories  # noqa: F401
from .core import schedules as _schedules  # noqa: F401
from .core import selectors as _selectors  # noqa: F401
from .errors import SparseError
from .types import Selection, TensorSpec
from .version import __version__

__all__ = ["Selection", "SparseError", "TensorSpec", "__version__"]
