"""Telemetry: what a run writes down while it trains, one writer a file."""

from hvd_sparse.registry import import_siblings

import_siblings(__name__, __path__)
