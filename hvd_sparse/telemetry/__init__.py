"""Telemetry: writers, which store records about a run. Each file has one writer."""

from hvd_sparse.registry import import_siblings

import_siblings(__name__, __path__)
