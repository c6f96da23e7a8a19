"""Memories: state that keeps unsent entries, one memory a file."""

from hvd_sparse.registry import import_siblings

import_siblings(__name__, __path__)
