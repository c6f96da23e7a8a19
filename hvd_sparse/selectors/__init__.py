"""Selectors, which choose the entries to send, one a file."""

from hvd_sparse.registry import import_siblings

import_siblings(__name__, __path__)
