"""Tracing: spans of the parts of a step, Chrome traces of them, and merging those."""
