"""The named methods, the options that all of them share, and their spelling on command lines."""

from hvd_sparse.methods.named import METHODS, Methods

__all__ = ["METHODS", "Methods"]
