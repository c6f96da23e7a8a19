"""The checks of ``scripts/gpu-check``, which need a GPU."""
