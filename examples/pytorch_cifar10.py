"""Train ResNet-20 or VGG-16 on CIFAR-10 with PyTorch, Horovod and sparse gradients.

horovodrun -np 4 python examples/pytorch_cifar10.py --data /data/cifar --model resnet20
"""

import horovod.torch as hvd
import torch
from common import shard
from recipes import cifar10, torch_networks
from recipes.options import CIFAR10, make_parser, read_arguments
from recipes.torch_training import Training, begin

MODELS = {"resnet20": torch_networks.resnet20, "vgg16": torch_networks.vgg16}


def to_torch(batches):
    """Yield batches of tensors with channels first, float32 [batch, 3, 32, 32]."""
    for images, labels in batches:
        yield torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(labels)


def main():
    parser = make_parser(__doc__.splitlines()[0], CIFAR10)
    parser.add_argument("--model", choices=sorted(MODELS), default="resnet20")
    args = read_arguments(parser, CIFAR10)
    begin(args)

    train, test = cifar10.load(args.data)
    images, labels = shard(train, hvd.rank(), hvd.size())
    seed = args.seed * hvd.size() + hvd.rank()
    batches = cifar10.Batches(images, labels, args.batch_size, args.steps, seed)
    tested = cifar10.InOrder(*(array[hvd.rank() :: hvd.size()] for array in test))

    training = Training(args, MODELS[args.model](), len(batches))
    for epoch in range(1, args.epochs + 1):
        train_loss = training.epoch(to_torch(batches))
        accuracy, _ = training.test(to_torch(tested))
        training.log.epoch(epoch, train_loss, test_accuracy=accuracy)
    training.finish()


if __name__ == "__main__":
    main()
