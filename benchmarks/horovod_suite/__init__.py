"""Horovod's own examples and tests, from a checkout that the user has, with our compression."""
