"""Memories, which keep the entries of a tensor that were not sent, one memory in each file."""

from hvd_sparse.registry import import_siblings

import_siblings(__name__, __path__)
