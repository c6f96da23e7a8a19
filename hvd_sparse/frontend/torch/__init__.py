"""The code that both PyTorch frontends share; it works without Horovod."""
