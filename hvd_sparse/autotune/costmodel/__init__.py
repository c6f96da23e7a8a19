"""The cost model: predicts the step of every method, exchange, density and grouping of tensors.

Everything here is arithmetic on measured or assumed costs: nothing is sent, and numpy is all that
it needs.
"""

from hvd_sparse.autotune.costmodel.profile import Layer, Profile

__all__ = ["Layer", "Profile"]
