"""Options of the examples from papers, their learning rates and compressors."""

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

from common import STOCK, Metered, positive, static_size
from spelling import density_argument, read_method

from hvd_sparse.errors import SparseError

WITHOUT_RESIDUAL = ("signsgd", "terngrad")  # accept no ``optimizer=``


@dataclass(frozen=True)
class Recipe:
    """Hyper-parameters of a published training. They are the defaults of the options.

    Attributes
    ----------
    source : where the hyper-parameters are published
    rates : learning rates by optimizer
    is_scaled : by default, the learning rate of SGD is multiplied by the number of workers
    drops : epochs at which the learning rate is divided by 10; if empty, it follows a cosine
    clip_norm : upper bound of the norm of gradients (see ``--clip-norm``), or None
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
    """Return a parser with the options of all these examples. The recipe gives the defaults."""
    parser = argparse.ArgumentParser(
        description=description,
        epilog=f"Defaults of SGD are those of {recipe.source}.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, help="folder of the data, which is not downloaded")
    add(
        "--method",
        dest="compression",
        type=_method,
        default="ldte_bs",
        help="none, fp16, or a method of `hvd-sparse list`, with options after commas, for example "
        "ldte_bs,variant=paper",
    )
    add(
        "--density",
        type=density_argument,
        default=0.001,
        help="fraction of the entries to send, a mapping by tensor name, as in "
        "\"{'fc*': 0.01, '*': 0.001}\", or, in PyTorch, hiding",
    )
    add("--optimizer", choices=sorted(recipe.rates), default="sgd", help="optimizer")
    add("--lr", type=float, help=f"learning rate; the defaults are {recipe.rates}")
    add(
        "--scale-lr",
        action=argparse.BooleanOptionalAction,
        help="multiply the learning rate by the number of workers"
        + (", the default for SGD" if recipe.is_scaled else ""),
    )
    add("--momentum", type=float, default=recipe.momentum, help="momentum of SGD")
    nesterov = argparse.BooleanOptionalAction
    add("--nesterov", action=nesterov, default=recipe.nesterov, help="form of SGD's momentum")
    decay = "weight decay; biases and norms have none, except with AdamW in Keras"
    add("--weight-decay", type=float, default=recipe.weight_decay, help=decay)
    bound = (
        "bound of the norm of each tensor's gradient; with the methods none, fp16, signsgd and "
        "terngrad, of all averaged gradients together"
    )
    add("--clip-norm", type=float, default=recipe.clip_norm, help=bound)
    add("--epochs", type=positive, default=recipe.epochs, help="number of epochs")
    batch = "examples per worker and step"
    add("--batch-size", type=positive, default=recipe.batch_size, help=batch)
    add(
        "--warmup",
        choices=("exponential", "dense", "none"),
        default="exponential",
        help="warm-up of the density; with none, only that of the method itself, if it has one",
    )
    warmup = "number of epochs in which density and learning rate warm up"
    add("--warmup-epochs", type=int, default=recipe.warmup_epochs, help=warmup)
    add("--steps", type=positive, help="largest number of steps of an epoch, for a trial")
    add("--seed", type=int, default=1, help="seed of weights and batches")
    add("--threads", type=int, default=1, help="threads per worker")
    add("--log-json", metavar="PATH", help="rank 0 writes a JSON line per epoch and a summary here")
    return parser


def read_arguments(parser, recipe):
    """Return the parsed options. Defaults that depend on other options are filled in."""
    args = parser.parse_args()
    method = None if args.compression in STOCK else read_method(args.compression)
    takes_density = method and method.takes_density and "density" not in method.options
    if args.density != parser.get_default("density") and not takes_density:
        parser.error(f"--density has no effect with --method {args.compression}")
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
    """Return the learning rate after ``epoch`` epochs, which may be a fraction.

    In the warm-up, the rate rises linearly from ``lr`` to ``lr`` times the number of workers, or is
    ``lr`` if it is not scaled. It then falls in steps or along a cosine.
    """
    highest = args.lr * (workers if args.scale_lr else 1)
    if epoch < args.warmup_epochs:
        return args.lr + (highest - args.lr) * epoch / args.warmup_epochs
    if args.drops:
        return highest * 0.1 ** sum(epoch >= drop for drop in args.drops)
    rest = max(1, args.epochs - args.warmup_epochs)
    return highest * (1 + math.cos(math.pi * (epoch - args.warmup_epochs) / rest)) / 2


def is_handed_over(args):
    """Return whether the compressor gets ``optimizer=``, so that its memory can also clip."""
    return args.compression not in STOCK and (
        read_method(args.compression).name not in WITHOUT_RESIDUAL
    )


def build_compression(
    args, steps_per_epoch, compression, params, optimizer, stock, counter, size_of=static_size
):
    """Return the compressor to pass to Horovod as ``compression``.

    Parameters
    ----------
    steps_per_epoch : number of steps of an epoch, which is a stage of the warm-up
    compression, params : the frontend's ``Compression`` of hvd_sparse, and the model or parameters
    optimizer : the optimizer that is passed to Horovod
    stock : Horovod's own ``Compression``
    counter, size_of : as in ``Metered``, for Horovod's own compressors
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
    """Return the schedule without its "value", which then is the method's density."""
    if args.warmup == "dense":
        steps = args.warmup_epochs * steps_per_epoch
        return {"id": "dense_warmup", "warmup_steps": steps}
    return {
        "id": "exponential_warmup",
        "stage_steps": steps_per_epoch,
        "stages": args.warmup_epochs,
    }


def _clipping(args, method):
    """Return the option with which the memory clips each tensor before the selection.

    After Horovod's allreduce, only the selected entries could be clipped.
    """
    if method == "dgc":
        return {"clip_norm": args.clip_norm}
    memory = "adam_correction" if args.optimizer == "adamw" else "momentum_feedback"
    return {"memory": {"id": memory, "clip_norm": args.clip_norm}}
