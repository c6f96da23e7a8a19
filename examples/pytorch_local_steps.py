"""Train on handwritten digits with local steps; every few steps, exchange parameter changes.

horovodrun -np 2 python examples/pytorch_local_steps.py --every 1 4 16
"""

import argparse
from functools import partial

import digits
import horovod.torch as hvd
import torch
from pytorch_digits import build_model, test_accuracy
from spelling import density_argument
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hvd_sparse.torch import Compression, LocalSteps

BATCH_SIZE = 32


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    every = "local steps between exchanges; each number is a training of its own"
    parser.add_argument("--every", type=int, nargs="+", default=[1, 4, 16], help=every)
    parser.add_argument(
        "--density", type=density_argument, default=1 / 64, help="a fraction, or a mapping by name"
    )
    parser.add_argument("--codec", default="chunk12", help="encoding of the sent entries")
    outer = "momentum of the outer step, in Nesterov's form if it is above 0"
    parser.add_argument("--outer-momentum", type=float, default=0.0, help=outer)
    outer = "learning rate of the outer step"
    parser.add_argument("--outer-lr", type=float, default=1.0, help=outer)
    parser.add_argument("--epochs", type=digits.positive, default=25, help="number of epochs")
    parser.add_argument("--lr", type=float, default=0.1, help="learning rate of one worker")
    seeds = "seeds; each is a training of its own"
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help=seeds)
    return parser.parse_args()


def train(args, every, seed, data):
    """Return the accuracy on the test images, and the bytes that this worker sent per step."""
    (images, labels), test = data
    torch.manual_seed(seed)
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    local = LocalSteps(
        optimizer,
        model.named_parameters(),
        compression=partial(
            Compression.topk, density=args.density, codec=args.codec, allow_dense=False
        ),
        every=every,
        outer_lr=args.outer_lr,
        outer_momentum=args.outer_momentum,
        nesterov=args.outer_momentum > 0,
    )
    dataset = TensorDataset(torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels))
    batches = DataLoader(dataset, batch_size=BATCH_SIZE, shuffle=True, drop_last=True)
    steps = 0
    for _ in range(args.epochs):
        model.train()
        for inputs, targets in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            local.step()
            steps += 1
    local.exchange()
    nbytes = local.stats()["bytes_sent"]
    local.compressor.close()
    return test_accuracy(model, test), nbytes / steps


def main():
    args = parse_arguments()
    hvd.init()
    torch.set_num_threads(1)
    train_data, test = digits.load()
    data = digits.shard(train_data, hvd.rank(), hvd.size(), BATCH_SIZE), test
    for every in args.every:
        found = [train(args, every, seed, data) for seed in args.seeds]
        if hvd.rank() == 0:
            accuracies = ", ".join(f"{accuracy:.2%}" for accuracy, _ in found)
            nbytes = sum(nbytes for _, nbytes in found) / len(found)
            print(
                f"every {every:3d}: accuracy {accuracies}; {nbytes:,.0f} bytes a step", flush=True
            )


if __name__ == "__main__":
    main()
