"""Train a small network on digits with DistributedDataParallel, sparse gradients and no Horovod.

torchrun --nproc-per-node 2 examples/pytorch_ddp_digits.py
"""

import digits
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import hvd_sparse.ddp


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


# PyTorch's own hooks, and the bytes of an entry in their messages.
STOCK = {"none": (default_hooks.allreduce_hook, 4), "fp16": (default_hooks.fp16_compress_hook, 2)}


def build_compression(args, model, optimizer, steps):
    if args.compression in STOCK:
        hook, entry_bytes = STOCK[args.compression]
        path = None if dist.get_rank() else args.telemetry
        metered = digits.Metered(hook, digits.Counter(), telemetry=path)

        def count(state, bucket):
            metered.counter.assign_add(bucket.buffer().numel() * entry_bytes)
            return hook(state, bucket)

        model.register_comm_hook(None, count)
        return metered
    told = {**digits.sending(args, steps), **digits.watching(args, dist.get_rank())}
    # The one line that makes gradients sparse.
    return hvd_sparse.ddp.register(model, args.compression, optimizer=optimizer, **told)


def average(values):
    """Return the mean of a list of numbers, averaged over all workers."""
    total = torch.tensor(values).mean()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


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
    return average(losses)


@torch.no_grad()
def test_accuracy(model, test):
    """Return the accuracy on all test images. Each worker evaluates a part of them."""
    model.eval()
    rank, size = dist.get_rank(), dist.get_world_size()
    images, labels = (torch.from_numpy(array[rank::size]) for array in test)
    # Without DDP, in whose forward pass ranks with more images could wait for other ranks.
    correct = (model.module(images.unsqueeze(1)).argmax(dim=1) == labels).sum()
    dist.all_reduce(correct)
    return correct.item() / len(test[0])


def main():
    args = digits.parse_arguments(__doc__.splitlines()[0])
    dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)

    train, test = digits.load()
    ranks = dist.get_rank(), dist.get_world_size()
    images, labels = digits.shard(train, *ranks, args.batch_size)
    dataset = TensorDataset(torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels))
    batches = DataLoader(dataset, batch_size=args.batch_size, shuffle=True, drop_last=True)

    model = DistributedDataParallel(build_model())
    rate = args.lr * dist.get_world_size()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=args.momentum)
    compression = build_compression(args, model, optimizer, args.epochs * len(batches))

    log = digits.Log(args, dist.get_rank(), compression)
    for epoch in range(1, args.epochs + 1):
        train_loss = train_epoch(model, optimizer, batches, log)
        log.epoch(epoch, train_loss, test_accuracy=test_accuracy(model, test))
    log.summary(compression)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
