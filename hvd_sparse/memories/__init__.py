"""Memories, which keep the entries of a tensor that were not sent, one memory in each file."""
