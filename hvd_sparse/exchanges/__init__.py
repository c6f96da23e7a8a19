"""Exchanges, which combine the ranks' selections by collectives. Every file has one exchange."""

from hvd_sparse.registry import import_siblings

import_siblings(__name__, __path__)
