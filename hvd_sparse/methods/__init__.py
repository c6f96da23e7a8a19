"""The named methods, and the options that all of them share."""

from hvd_sparse.methods.named import METHODS, Methods

__all__ = ["METHODS", "Methods"]
