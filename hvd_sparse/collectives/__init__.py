"""Implementations of ``collectives.contract`` over communication libraries, one a file."""
