"""Selectors, which choose the entries of a tensor to send. Each selector has a file of its own."""
