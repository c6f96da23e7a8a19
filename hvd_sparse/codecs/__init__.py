"""Codecs, which encode the selected entries of a tensor as bytes. Each codec has a file of its
own."""

from hvd_sparse.registry import import_siblings

import_siblings(__name__, __path__)
