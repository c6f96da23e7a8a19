"""Kernels: the array functions that selectors, codecs, memories and the step call.

``contract`` defines the kernels and implements them in numpy, as the reference. The subpackages
``numba``, ``torch`` and ``triton`` implement faster ones; each implementation is called an engine.
"""

from hvd_sparse.kernels.contract import Kernels

reference = Kernels()
