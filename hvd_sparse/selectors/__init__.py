"""Selectors, which choose the entries of a tensor to send. Each selector has a file of its own."""

from hvd_sparse.registry import import_siblings

import_siblings(__name__, __path__)
