"""Options of the examples of the papers, learning rates, and the compressor that they ask for."""

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

from common import STOCK, Metered, static_size

from hvd_sparse.errors import SparseError
from hvd_sparse.methods.spelling import density_argument, read_method

WITHOUT_RESIDUAL = ("terngrad",)  # the optimizer keeps its work where nothing is kept back


@dataclass(frozen=True)
class Recipe:
    """Hyper-parameters of a published training, which are the options' defaults.

    Attributes
    ----------
    source : where they are from
    rates : learning rates by optimizer
    is_scaled : the rate of SGD is one worker's, and grows with their number
    drops : epochs at which the rate falls to a tenth; a cosine where there are none
    clip_norm : bound on the gradient's norm, or None
    """

    source: str
    epochs: int
    batch_size: int
    rates: dict
    momentum: float
    weight_decay: float
    warmup_epochs: int
    is_scaled: bool = True
    drops: tuple = ()
    nesterov: bool = False
    clip_norm: float | None = None


CIFAR10 = Recipe(
    source="the code of DGC's authors",
    epochs=200,
    batch_size=128,
    rates={"sgd": 0.1, "adamw": 0.001},
    momentum=0.9,
    weight_decay=1e-4,
    warmup_epochs=5,
)
IMAGENET = Recipe(
    source="the code of DGC's authors",
    epochs=90,
    batch_size=32,
    rates={"sgd": 0.0125, "adamw": 0.001},
    momentum=0.9,
    nesterov=True,
    weight_decay=1e-4,
    warmup_epochs=5,
    drops=(30, 60, 80),
)
PENN_TREEBANK = Recipe(
    source="the code of Gaussian-k's authors",
    epochs=100,
    batch_size=20,
    rates={"sgd": 22.0, "adamw": 0.001},
    is_scaled=False,
    momentum=0.0,
    weight_decay=0.0,
    warmup_epochs=1,
    drops=(63, 80),
    clip_norm=0.25,
)


def make_parser(description, recipe):
    """Return a parser with the options that all these examples have, at the recipe's values."""
    parser = argparse.ArgumentParser(
        description=description,
        epilog=f"Defaults of SGD are those of {recipe.source}.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, help="folder of the data, which nothing downloads")
    add(
        "--method",
        dest="compression",
        type=_method,
        default="ldte_bs",
        help="none, fp16, or a method of `hvd-sparse list` with its options behind commas, as in "
        "ldte_bs,variant=paper",
    )
    add(
        "--density",
        type=density_argument,
        default=0.001,
        help="part of the entries sent, NAME=PART,... or hiding",
    )
    add("--optimizer", choices=sorted(recipe.rates), default="sgd")
    add("--lr", type=float, help=f"learning rate, by default of {recipe.rates}")
    add(
        "--scale-lr",
        action=argparse.BooleanOptionalAction,
        help="times the number of workers, which is SGD's default"
        if recipe.is_scaled
        else "times the number of workers",
    )
    add("--momentum", type=float, default=recipe.momentum, help="of SGD")
    add("--nesterov", action=argparse.BooleanOptionalAction, default=recipe.nesterov)
    add("--weight-decay", type=float, default=recipe.weight_decay)
    add("--clip-norm", type=float, default=recipe.clip_norm, help="bound on the gradient's norm")
    add("--epochs", type=int, default=recipe.epochs)
    add("--batch-size", type=int, default=recipe.batch_size, help="of a worker and step")
    add(
        "--warmup",
        choices=("exponential", "dense", "none"),
        default="exponential",
        help="of the density; none leaves it to the method",
    )
    add("--warmup-epochs", type=int, default=recipe.warmup_epochs, help="of density and rate")
    add("--steps", type=int, help="at most so many an epoch, to try it out")
    add("--seed", type=int, default=1)
    add("--threads", type=int, default=1, help="threads per worker")
    add("--log-json", metavar="PATH", help="rank 0 writes a JSON line per epoch and a summary here")
    return parser


def read_arguments(parser, recipe):
    """Return the parsed options, with the defaults that depend on others put in."""
    args = parser.parse_args()
    args.drops = recipe.drops
    if args.scale_lr is None:
        args.scale_lr = recipe.is_scaled and args.optimizer == "sgd"
    if args.lr is None:
        args.lr = recipe.rates[args.optimizer]
    return args


def _method(text):
    if text not in STOCK:
        try:
            read_method(text)
        except SparseError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
    return text


def rate_at(args, epoch, workers):
    """Return the learning rate at a point of the training, in epochs: linear in the warm-up, then
    in steps or along a cosine."""
    highest = args.lr * (workers if args.scale_lr else 1)
    if epoch < args.warmup_epochs:
        return args.lr + (highest - args.lr) * epoch / args.warmup_epochs
    if args.drops:
        return highest * 0.1 ** sum(epoch >= drop for drop in args.drops)
    rest = max(1, args.epochs - args.warmup_epochs)
    return highest * (1 + math.cos(math.pi * (epoch - args.warmup_epochs) / rest)) / 2


def is_handed_over(args):
    """Tell whether a memory does the optimizer's work, clipping included."""
    return args.compression not in STOCK and (
        read_method(args.compression).name not in WITHOUT_RESIDUAL
    )


def build_compression(
    args, steps_per_epoch, compression, params, optimizer, stock, counter, size_of=static_size
):
    """Return what Horovod is given as ``compression``.

    Parameters
    ----------
    steps_per_epoch : which are a stage of the warm-up
    compression, params : the frontend's ``Compression`` of hvd_sparse, and what it compresses
    optimizer : the one that Horovod is given
    stock : Horovod's own ``Compression``
    counter, size_of : add up the bytes of Horovod's own, from a tensor's entries
    """
    if args.compression in STOCK:
        return Metered(getattr(stock, args.compression), counter, size_of)
    method = read_method(args.compression)
    options = {}
    if method.takes_density:
        options["density"] = args.density
        if args.warmup != "none" and args.warmup_epochs:
            options["schedule"] = _warmup(args, steps_per_epoch)
    if is_handed_over(args):
        options["optimizer"] = optimizer
        if args.clip_norm is not None:
            options |= _clipping(args, method.name)
    return method.create(compression, params, **options)


def _warmup(args, steps_per_epoch):
    if args.warmup == "dense":
        steps = args.warmup_epochs * steps_per_epoch
        return {"id": "dense_warmup", "value": args.density, "warmup_steps": steps}
    return {
        "id": "exponential_warmup",
        "value": args.density,
        "stage_steps": steps_per_epoch,
        "stages": args.warmup_epochs,
    }


def _clipping(args, method):
    """Return the option by which a memory clips, tensor by tensor: behind Horovod it would clip
    what was selected."""
    if method == "dgc":
        return {"clip_norm": args.clip_norm}
    memory = "adam_correction" if args.optimizer == "adamw" else "momentum_feedback"
    return {"memory": {"id": memory, "clip_norm": args.clip_norm}}
