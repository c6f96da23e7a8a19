"""What training reaches beside dense at a six-hundredth of its bytes."""

from benchmarks.accuracy.bench import add_options, run

__all__ = ["add_options", "run"]
