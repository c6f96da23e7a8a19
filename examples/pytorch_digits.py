"""Train a small network on handwritten digits with PyTorch, Horovod and sparse gradients.

horovodrun -np 2 python examples/pytorch_digits.py
"""

import digits
import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hvd_sparse.torch import Compression


def build_model():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 512),
        nn.ReLU(),
        nn.Linear(512, 10),
    )


def build_compression(args, model, optimizer, steps):
    if args.compression in digits.STOCK:
        path = None if hvd.rank() else args.telemetry
        stock = getattr(hvd.Compression, args.compression)
        return digits.Metered(stock, digits.Counter(), telemetry=path)
    # Line 1 of the 2 lines that make gradients sparse. For one fixed method, the line is
    # compression = Compression.ldte_bs(model.named_parameters(), optimizer=optimizer, steps=steps)
    return getattr(Compression, args.compression)(
        model.named_parameters(),
        optimizer=optimizer,
        **digits.sending(args, steps),
        **digits.watching(args, hvd.rank()),
    )


def train_epoch(model, optimizer, batches, log):
    """Train one epoch; return the loss, averaged over the epoch and over all workers."""
    model.train()
    losses = []
    for images, labels in batches:
        with log.step():
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return hvd.allreduce(torch.tensor(losses).mean(), name="train_loss").item()


@torch.no_grad()
def test_accuracy(model, test):
    """Return the accuracy on all test images. Each worker evaluates a part of them."""
    model.eval()
    images, labels = (torch.from_numpy(array[hvd.rank() :: hvd.size()]) for array in test)
    correct = (model(images.unsqueeze(1)).argmax(dim=1) == labels).sum()
    return hvd.allreduce(correct, op=hvd.Sum, name="correct").item() / len(test[0])


def main():
    args = digits.parse_arguments(__doc__.splitlines()[0])
    hvd.init()
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)

    train, test = digits.load()
    images, labels = digits.shard(train, hvd.rank(), hvd.size(), args.batch_size)
    dataset = TensorDataset(torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels))
    batches = DataLoader(dataset, batch_size=args.batch_size, shuffle=True, drop_last=True)

    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * hvd.size(), momentum=args.momentum)
    compression = build_compression(args, model, optimizer, args.epochs * len(batches))
    # Line 2 of 2: pass the compressor to Horovod.
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), compression=compression
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    log = digits.Log(args, hvd.rank(), compression)
    for epoch in range(1, args.epochs + 1):
        train_loss = train_epoch(model, optimizer, batches, log)
        log.epoch(epoch, train_loss, test_accuracy=test_accuracy(model, test))
    log.summary(compression)


if __name__ == "__main__":
    main()
