"""Codecs, which encode a selection of entries as bytes. Every file has one codec."""

from hvd_sparse.registry import import_siblings

import_siblings(__name__, __path__)
