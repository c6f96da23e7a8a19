"""Checks of what only a GPU can show: the work of ``scripts/gpu-check``."""
