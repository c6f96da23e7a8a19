"""Telemetry: records of a run during training, one writer a file."""

from hvd_sparse.registry import import_siblings

import_siblings(__name__, __path__)
