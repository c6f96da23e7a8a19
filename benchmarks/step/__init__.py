"""Measures the work of a step under Horovod, with one launch for each method."""
