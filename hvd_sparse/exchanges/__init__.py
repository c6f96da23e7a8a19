"""Exchanges, which combine the ranks' selections by collectives. Each exchange has a file of its
own."""

from hvd_sparse.registry import import_siblings

import_siblings(__name__, __path__)
