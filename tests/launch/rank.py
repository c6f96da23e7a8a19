"""Program of the launched ranks: prints its host, averages a tensor, and fails on request."""

import argparse
import os
import socket
import sys

import horovod.torch as hvd
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--fail-on", type=int)
options = parser.parse_args()
hvd.init()
total = hvd.allreduce(torch.tensor([float(hvd.rank())]), op=hvd.Sum, name="ranks").item()
print(
    f"rank {hvd.rank()} of {hvd.size()}, {hvd.local_rank()} of {hvd.local_size()} on "
    f"{socket.gethostname()}: {total}"
)
print(f"HVD_SPARSE_MARK is {os.environ.get('HVD_SPARSE_MARK')}", file=sys.stderr)
hvd.barrier()
sys.exit(7 if options.fail_on == hvd.rank() else 0)
