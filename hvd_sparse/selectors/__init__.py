"""Selectors, which choose the entries to send. Every file has one selector."""

from hvd_sparse.registry import import_siblings

import_siblings(__name__, __path__)
