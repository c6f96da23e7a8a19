"""The way of one tensor through a step under Horovod: the functions called, and their files."""
