"""The program ``train.py`` of the documentation's commands: README's two lines, three steps."""

import horovod.torch as hvd
import torch

from hvd_sparse.torch import Compression

hvd.init()
torch.set_num_threads(1)
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
compression = Compression.ldte_bs(model.named_parameters(), density=0.01, optimizer=optimizer)
optimizer = hvd.DistributedOptimizer(
    optimizer, named_parameters=model.named_parameters(), compression=compression
)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
print(f"rank {hvd.rank()} of {hvd.size()} has trained {compression.stats()['steps']} steps")
hvd.barrier()
