"""Codecs, which encode the selected entries of a tensor as bytes, one codec in each file."""

from hvd_sparse.registry import import_siblings

import_siblings(__name__, __path__)
