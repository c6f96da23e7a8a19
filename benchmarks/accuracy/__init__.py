"""Compares the accuracy of training at 1/600 of the bytes with that of dense training."""

from benchmarks.accuracy.bench import add_options, run

__all__ = ["add_options", "run"]
