"""Compares the accuracy of compressed training, mainly at 1/600 of the bytes, with dense
training."""

from benchmarks.accuracy.bench import add_options, run

__all__ = ["add_options", "run"]
