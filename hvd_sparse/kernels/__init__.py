"""Kernels: the functions on arrays that all other parts call.

``contract`` specifies the kernels, ``reference`` implements the contract in numpy, and the other
modules are faster engines.
"""
