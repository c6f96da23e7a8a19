"""Which tensors to send together, by which exchange, at which density, and whether to compress at
all: on paper.

Everything here is arithmetic on measured or assumed costs: nothing is sent, and numpy is all it
needs.
"""

from hvd_sparse.autotune.costmodel.profile import Layer, Profile

__all__ = ["Layer", "Profile"]
