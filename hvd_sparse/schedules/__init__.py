"""Schedules: the density of every step, one schedule a file."""

from hvd_sparse.registry import import_siblings

import_siblings(__name__, __path__)
