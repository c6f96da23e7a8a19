"""Codecs: encodings of a selection as bytes, a file for every codec or family."""

from hvd_sparse.registry import import_siblings

import_siblings(__name__, __path__)
