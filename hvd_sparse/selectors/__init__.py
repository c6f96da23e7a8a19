"""Selectors, which choose the entries to send, a file for every selector or family."""

from hvd_sparse.registry import import_siblings

import_siblings(__name__, __path__)
