"""Schedules, which give the density of every step. Every file has one schedule."""

from hvd_sparse.registry import import_siblings

import_siblings(__name__, __path__)
