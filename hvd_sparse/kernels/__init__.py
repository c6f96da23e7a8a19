"""Kernels: the functions on arrays that all other parts call.

``contract`` defines the kernels in numpy, and the other modules are faster engines.
"""

from hvd_sparse.kernels.contract import Kernels

reference = Kernels()
