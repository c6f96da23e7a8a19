"""Memories, which keep the entries that were not sent. Every file has one memory."""

from hvd_sparse.registry import import_siblings

import_siblings(__name__, __path__)
