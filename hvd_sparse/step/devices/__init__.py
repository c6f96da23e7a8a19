"""Tensors whose vectors lie on a device, in a step."""
