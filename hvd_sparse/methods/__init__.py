"""The named methods, and the options that all of them share."""

from hvd_sparse.methods.named import METHODS, Methods, check_method

__all__ = ["METHODS", "Methods", "check_method"]
