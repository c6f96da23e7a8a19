"""Train ResNet-20 or VGG-16 on CIFAR-10 with model.fit, Horovod and sparse gradients.

horovodrun -np 4 python examples/tensorflow2_keras_cifar10.py --data /data/cifar --model resnet20
"""

import os

# Set this before TensorFlow is imported, because Horovod 0.28 supports only Keras 2.
os.environ["TF_USE_LEGACY_KERAS"] = "1"

import horovod.tensorflow.keras as hvd
from common import shard
from recipes import cifar10, keras_networks
from recipes.keras_training import begin, compile_model, fit
from recipes.options import CIFAR10, make_parser, read_arguments

MODELS = {"resnet20": keras_networks.resnet20, "vgg16": keras_networks.vgg16}


def main():
    parser = make_parser(__doc__.splitlines()[0], CIFAR10)
    parser.add_argument("--model", choices=sorted(MODELS), default="resnet20")
    args = read_arguments(parser, CIFAR10)
    begin(args)

    train, test = cifar10.load(args.data)
    images, labels = shard(train, hvd.rank(), hvd.size())
    seed = args.seed * hvd.size() + hvd.rank()
    batches = cifar10.Batches(images, labels, args.batch_size, args.steps, seed)
    # Every worker tests on the same number of images, so that the average over workers is exact.
    tested = cifar10.InOrder(*shard(test, hvd.rank(), hvd.size()))

    model = MODELS[args.model]()
    compression = compile_model(args, model, len(batches))
    fit(
        args,
        model,
        compression,
        batches,
        tested,
        lambda logs: {"test_accuracy": logs["val_accuracy"]},
    )


if __name__ == "__main__":
    main()
