"""Gradient sparsification for Keras 3 on TensorFlow; Horovod's own optimizer wrapper needs Keras 2.

For example:

    import horovod.tensorflow as hvd
    from hvd_sparse.keras import Compression, DistributedOptimizer

    hvd.init()
    compression = Compression.ldte_bs(model, density=0.001, optimizer=optimizer)
    optimizer = DistributedOptimizer(optimizer, compression=compression)
    model.compile(optimizer, loss, jit_compile=False)    # Keras enables XLA if there is a GPU
"""

from hvd_sparse.keras import callbacks
from hvd_sparse.keras.optimizer import (
    DistributedGradientTape,
    DistributedOptimizer,
    PartialDistributedGradientTape,
)
from hvd_sparse.tensorflow import Compression

__all__ = [
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "PartialDistributedGradientTape",
    "callbacks",
]
