"""Named methods: each paper as a choice of five parts, with the authors' defaults.

Both frontends' ``Compression`` inherit these, so that an option means the same in both.
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
    """Base of the frontends' ``Compression``: one method a paper, and two to compose freely."""


METHODS: dict[str, str] = {
    name: getattr(Methods, name).paper
    for name in sorted(dir(Methods))
    if hasattr(getattr(Methods, name), "paper")
}
"""Named methods and their papers."""
