"""Counts the functions that are called for one tensor in a step under Horovod, and their files."""
