"""What training reaches beside dense at a few hundredths of a percent of its bytes."""

from benchmarks.accuracy.bench import add_options, run

__all__ = ["add_options", "run"]
