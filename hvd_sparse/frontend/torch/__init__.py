"""The part of the compressors that both PyTorch frontends share, which needs no Horovod."""
