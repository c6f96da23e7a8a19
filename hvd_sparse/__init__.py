"""Gradient sparsification for unmodified Horovod: each step sends few entries of every gradient.

Import a frontend: ``hvd_sparse.torch``, ``hvd_sparse.tensorflow``, ``hvd_sparse.keras`` or
``hvd_sparse.ddp``. To import ``hvd_sparse`` itself, only numpy must be installed.
"""

from hvd_sparse.errors import SparseError
from hvd_sparse.kernels import engines as _engines  # noqa: F401 - registers the engines
from hvd_sparse.registry import import_parts as _import_parts
from hvd_sparse.types import Selection, TensorSpec
from hvd_sparse.version import __version__

__all__ = ["Selection", "SparseError", "TensorSpec", "__version__"]

for _kind in ("codecs", "exchanges", "memories", "schedules", "selectors", "telemetry"):
    _import_parts(f"hvd_sparse.{_kind}")
