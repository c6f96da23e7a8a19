"""Collectives of ``collectives.contract`` over the libraries that move bytes, one a file."""
