"""Telemetry: writers of records about a run. Each module has one writer."""

from hvd_sparse.registry import import_siblings

import_siblings(__name__, __path__)
