"""The framework named by a worker's first argument, for cases that both frameworks share."""

import importlib
import os
import sys

from _common import SPARSE_ONLY, caught

if sys.argv[1] == "keras3":
    os.environ["TF_USE_LEGACY_KERAS"] = "0"  # before TensorFlow is imported
NAME = "torch" if sys.argv[1] == "torch" else "tensorflow"
fw = importlib.import_module(f"_{NAME}_cases")


def compress(params, **options):
    """Return a compressor of cases of faults."""
    usual = {"compress_1d": fw.COMPRESSES_1D, "density": 0.25, "timeout_s": 600.0}
    return fw.Compression.topk(params, **{**SPARSE_ONLY, **usual, **options})


def fails(name, compressor, step):
    said = caught(step)
    compressor.close()
    return {"raised": said, "is_usable": fw.is_usable(name)}
