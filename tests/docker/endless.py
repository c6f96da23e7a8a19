"""Runs on every host of a cluster: trains until something ends it, and prints every tenth step.

scripts/launch -H ... -- python endless.py --timeout-s 6
"""

import argparse
import time

import horovod.torch as hvd
import torch

from hvd_sparse.torch import Compression

LIMIT_S = 1200


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timeout-s", type=float, default=6.0)
    options = parser.parse_args()
    hvd.init()
    torch.manual_seed(hvd.rank())
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    named = list(model.named_parameters())
    compression = Compression.ldte_bs(named, density=0.01, timeout_s=options.timeout_s)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=named, compression=compression)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    started, step = time.monotonic(), 0
    while time.monotonic() < started + LIMIT_S:
        optimizer.zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
        step += 1
        if step % 10 == 0 and hvd.rank() == 0:
            print(f"step {step}", flush=True)
        time.sleep(0.01)


if __name__ == "__main__":
    main()
