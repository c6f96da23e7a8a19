"""Exchanges, which combine the ranks' selections by collectives, one exchange in each file."""

from hvd_sparse.registry import import_siblings

import_siblings(__name__, __path__)
