"""Codecs: encodings of a selection as bytes, one a file."""

from hvd_sparse.registry import import_siblings

import_siblings(__name__, __path__)
