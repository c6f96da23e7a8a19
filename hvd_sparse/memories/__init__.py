"""Memories: state that keeps what was not sent, one memory a file."""

from hvd_sparse.registry import import_siblings

import_siblings(__name__, __path__)
