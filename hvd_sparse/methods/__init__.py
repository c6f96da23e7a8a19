"""Named methods: each paper's method as a choice of five parts, with the authors' defaults.

The frontends' ``Compression`` classes inherit them, so that options are the same in all.
"""

from __future__ import annotations

from hvd_sparse.methods.agreed import AgreedMethods
from hvd_sparse.methods.builder import Compressor
from hvd_sparse.methods.fitted import FittedMethods
from hvd_sparse.methods.largest import LargestMethods
from hvd_sparse.methods.signs import SignMethods


class Methods(
    LargestMethods[Compressor],
    FittedMethods[Compressor],
    AgreedMethods[Compressor],
    SignMethods[Compressor],
):
    """Base class of the frontends' ``Compression``: named methods, ``build``, ``from_config``."""


METHODS: dict[str, str] = {
    name: getattr(Methods, name).paper
    for name in sorted(dir(Methods))
    if hasattr(getattr(Methods, name), "paper")
}
"""Named methods and their papers."""
