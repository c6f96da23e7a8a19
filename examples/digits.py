"""Parts that the three examples on digits share: their options and the data.

The data are the 1,797 handwritten digits (8x8 pixels) that scikit-learn ships: real, and nothing to
download.
"""

import argparse

from common import STOCK, Counter, Log, Metered, shard
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from hvd_sparse.methods.spelling import density_argument

__all__ = [
    "STOCK",
    "Counter",
    "Log",
    "Metered",
    "load",
    "parse_arguments",
    "sending",
    "shard",
    "watching",
]
SPARSE = ("ldte_bs", "ldte", "topk")  # those of hvd_sparse


def parse_arguments(description):
    """Read the options, which are the same in every framework."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument(
        "--compression", choices=STOCK + SPARSE, default="ldte_bs", help="how gradients travel"
    )
    parser.add_argument(
        "--density",
        type=density_argument,
        help="fraction of the entries that the sparse ones send, NAME=FRACTION,... or hiding; "
        "without it, what the steps of the run ask for",
    )
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--batch-size", type=int, default=32, help="images per worker and step")
    parser.add_argument(
        "--lr", type=float, default=0.1, help="learning rate of one worker, scaled by their number"
    )
    parser.add_argument("--momentum", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="threads per worker")
    parser.add_argument(
        "--log-json", metavar="PATH", help="rank 0 writes a JSON line per epoch and a summary here"
    )
    parser.add_argument(
        "--telemetry",
        metavar="PATH",
        help="rank 0 writes records here, which hvd-sparse report shows",
    )
    return parser.parse_args()


def sending(args, steps):
    """Give the options that say how much a compressor of hvd_sparse sends in a run."""
    return {"steps": steps} if args.density is None else {"density": args.density}


def watching(args, rank):
    """Give the options by which a compressor of hvd_sparse writes records down."""
    if not args.telemetry or rank:
        return {}
    return {"telemetry": {"id": "jsonl", "path": args.telemetry}, "telemetry_every": 10}


def load():
    """Give (train images, train labels), (test images, test labels): the same split in every
    run."""
    digits = load_digits()
    images = (digits.images / 16).astype("float32")
    train_images, test_images, train_labels, test_labels = train_test_split(
        images, digits.target, test_size=450, random_state=0, stratify=digits.target
    )
    return (train_images, train_labels), (test_images, test_labels)
