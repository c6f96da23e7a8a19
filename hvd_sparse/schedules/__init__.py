"""Schedules, which give the density of every step, one a file."""

from hvd_sparse.registry import import_siblings

import_siblings(__name__, __path__)
