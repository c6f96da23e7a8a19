"""Gradient sparsification for unmodified Horovod: each step sends few entries of every gradient.

Import a frontend: ``hvd_sparse.torch``, ``hvd_sparse.tensorflow``, ``hvd_sparse.keras`` or
``hvd_sparse.ddp``. To import ``hvd_sparse`` itself, only numpy must be installed.
"""

from hvd_sparse import codecs as _codecs  # noqa: F401
from hvd_sparse import exchanges as _exchanges  # noqa: F401
from hvd_sparse import memories as _memories  # noqa: F401
from hvd_sparse import schedules as _schedules  # noqa: F401
from hvd_sparse import selectors as _selectors  # noqa: F401
from hvd_sparse import telemetry as _telemetry  # noqa: F401
from hvd_sparse.errors import SparseError
from hvd_sparse.kernels import (
    engines as _engines,  # noqa: F401 - parts register themselves when they are imported
)
from hvd_sparse.types import Selection, TensorSpec
from hvd_sparse.version import __version__

__all__ = ["Selection", "SparseError", "TensorSpec", "__version__"]
