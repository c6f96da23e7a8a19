"""Schedules, which set the density of every step. Each schedule has a file of its own."""

from hvd_sparse.registry import import_siblings

import_siblings(__name__, __path__)
