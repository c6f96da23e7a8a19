"""Measures the work of a step under Horovod. Each method has one launch, which measures all
models."""
