"""Selectors, which choose the entries to send, a file for every paper or selector."""

from hvd_sparse.registry import import_siblings

import_siblings(__name__, __path__)
