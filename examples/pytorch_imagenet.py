"""Train ResNet-50 on ImageNet with PyTorch, Horovod and sparse gradients.

horovodrun -np 4 python examples/pytorch_imagenet.py --data /data/imagenet

The folder has train/CLASS/*.jpeg and val/CLASS/*.jpeg, as for torchvision's ImageFolder.
"""

import horovod.torch as hvd
from recipes.image_folder import ImageFolder
from recipes.options import IMAGENET, make_parser, read_arguments
from recipes.torch_networks import resnet50
from recipes.torch_training import Training, begin
from torch.utils.data import DataLoader, Subset
from torch.utils.data.distributed import DistributedSampler


def loader(args, images, **options):
    """Return a loader whose processes are not forked, because this process may use MPI."""
    context = "forkserver" if args.loaders else None
    return DataLoader(
        images,
        batch_size=args.batch_size,
        num_workers=args.loaders,
        multiprocessing_context=context,
        persistent_workers=args.loaders > 0,
        **options,
    )


def limited(batches, steps):
    """Yield at most ``steps`` batches."""
    for number, batch in enumerate(batches, start=1):
        yield batch
        if number == steps:
            return


def main():
    parser = make_parser(__doc__.splitlines()[0], IMAGENET)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--loaders", type=int, default=4, help="decoding processes per worker")
    args = read_arguments(parser, IMAGENET)
    begin(args)

    images = ImageFolder(args.data / "train", args.image_size, augments=True)
    tested = ImageFolder(args.data / "val", args.image_size, augments=False)
    if images.classes != tested.classes:
        raise SystemExit(f"{args.data}: train and val have different classes")
    sampler = DistributedSampler(images, hvd.size(), hvd.rank(), seed=args.seed)
    batches = loader(args, images, sampler=sampler, drop_last=True)
    if not len(batches):
        raise SystemExit(f"{len(images)} images are less than a batch for each worker")
    mine = Subset(tested, range(hvd.rank(), len(tested), hvd.size()))
    test_batches = loader(args, mine)

    steps = min(len(batches), args.steps or len(batches))
    training = Training(args, resnet50(len(images.classes)), steps)
    for epoch in range(1, args.epochs + 1):
        sampler.set_epoch(epoch)
        train_loss = training.epoch(limited(batches, steps))
        accuracy, _ = training.test(test_batches)
        training.log.epoch(epoch, train_loss, test_accuracy=accuracy)
    training.finish()


if __name__ == "__main__":
    main()
