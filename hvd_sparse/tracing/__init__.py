"""Tracing: spans of the parts of a step, and Chrome traces of them."""
