"""Tables, under an older name."""

from benchmarks._page import markdown_table

__all__ = ["markdown_table"]
