"""Kernels: all work on arrays.  The contract, the numpy reference, and engines restated for
speed."""
