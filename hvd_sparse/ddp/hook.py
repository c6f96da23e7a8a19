"""The communication hook that DistributedDataParallel is given."""

# No postponed annotations here: DDP compares those of a hook with the classes themselves.

import torch
import torch.distributed as dist

from hvd_sparse.ddp.compressor import DdpCompressor


def sparse_hook(
    compressor: DdpCompressor, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Reduce a bucket of gradients by the compressor."""
    return compressor.reduce(bucket)
