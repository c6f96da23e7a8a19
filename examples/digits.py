"""Options and data of the examples on digits.

The data are the 1,797 handwritten digits (8x8 pixels) that are part of scikit-learn, so that
nothing is downloaded.
"""

import argparse

from common import STOCK, Counter, Log, Metered, positive, shard
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from spelling import density_argument

__all__ = [
    "STOCK",
    "Counter",
    "Log",
    "Metered",
    "load",
    "parse_arguments",
    "positive",
    "sending",
    "shard",
    "watching",
]
SPARSE = ("ldte_bs", "ldte", "topk")  # methods of hvd_sparse


def parse_arguments(description):
    """Return the options of the command line, which are the same in every framework."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument(
        "--compression", choices=STOCK + SPARSE, default="ldte_bs", help="how gradients are sent"
    )
    parser.add_argument(
        "--density",
        type=density_argument,
        help="fraction of the entries that sparse methods send, a mapping by tensor name, as in "
        "\"{'fc*': 0.01, '*': 0.001}\", or, in PyTorch, hiding; None: computed from the number of "
        "steps",
    )
    parser.add_argument("--epochs", type=positive, default=25, help="number of epochs")
    parser.add_argument(
        "--batch-size", type=positive, default=32, help="images per worker and step"
    )
    parser.add_argument(
        "--lr", type=float, default=0.1, help="learning rate, multiplied by the number of workers"
    )
    parser.add_argument("--momentum", type=float, default=0.0, help="momentum of SGD")
    parser.add_argument("--seed", type=int, default=1, help="seed of weights and batches")
    parser.add_argument("--threads", type=int, default=1, help="threads per worker")
    parser.add_argument(
        "--log-json", metavar="PATH", help="file for a JSON line per epoch and a summary (rank 0)"
    )
    parser.add_argument(
        "--telemetry",
        metavar="PATH",
        help="file for the records that hvd-sparse report reads (rank 0)",
    )
    args = parser.parse_args()
    if args.density is not None and args.compression in STOCK:
        parser.error(f"--density has no effect with --compression {args.compression}")
    return args


def sending(args, steps):
    """Return the compressor's option that determines the density: ``steps`` or ``density``."""
    return {"steps": steps} if args.density is None else {"density": args.density}


def watching(args, rank):
    """Return the compressor's options for writing records; none without ``--telemetry``, and none
    on ranks other than 0."""
    if not args.telemetry or rank:
        return {}
    return {"telemetry": {"id": "jsonl", "path": args.telemetry}, "telemetry_every": 10}


def load():
    """Return (train images, train labels), (test images, test labels), the same in every run.

    Images are float32 [count, 8, 8], labels int64 [count].
    """
    digits = load_digits()
    images = (digits.images / 16).astype("float32")
    train_images, test_images, train_labels, test_labels = train_test_split(
        images, digits.target, test_size=450, random_state=0, stratify=digits.target
    )
    return (train_images, train_labels), (test_images, test_labels)
