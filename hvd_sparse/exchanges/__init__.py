"""Exchanges: algorithms made of collectives, one exchange a file."""

from hvd_sparse.registry import import_siblings

import_siblings(__name__, __path__)
