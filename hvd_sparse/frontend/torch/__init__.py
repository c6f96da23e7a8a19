"""The part of the compressors that both PyTorch frontends share; it needs no Horovod."""
