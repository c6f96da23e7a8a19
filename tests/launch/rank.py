"""Program of the launched ranks: prints its host, averages a tensor, and fails on request. With
``--exchange``, it compresses one gradient, and prints the error."""

import argparse
import os
import socket
import sys

import horovod.torch as hvd
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--fail-on", type=int)
parser.add_argument("--exchange")
options = parser.parse_args()
hvd.init()
total = hvd.allreduce(torch.tensor([float(hvd.rank())]), op=hvd.Sum, name="ranks").item()
print(
    f"rank {hvd.rank()} of {hvd.size()}, {hvd.local_rank()} of {hvd.local_size()} on "
    f"{socket.gethostname()}: {total}"
)
print(f"HVD_SPARSE_MARK is {os.environ.get('HVD_SPARSE_MARK')}", file=sys.stderr)
if options.exchange:
    from hvd_sparse.errors import SparseError
    from hvd_sparse.torch import Compression

    model = torch.nn.Linear(64, 64)
    compression = Compression.topk(
        model.named_parameters(), density=0.1, exchange=options.exchange, min_numel=1
    )
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), compression
    )
    try:
        model(torch.ones(64)).sum().backward()
    except SparseError as error:
        print(f"rank {hvd.rank()}: {type(error).__name__}: {error}")
hvd.barrier()
sys.exit(7 if options.fail_on == hvd.rank() else 0)
