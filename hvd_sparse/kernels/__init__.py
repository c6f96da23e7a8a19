"""Kernels: the array functions that selectors, codecs, memories and the step call.

``contract`` defines the kernels and implements them in numpy. The subpackages ``numba``, ``torch``
and ``triton`` are faster engines.
"""

from hvd_sparse.kernels.contract import Kernels

reference = Kernels()
