"""Decisions from measurements of a run's first steps: groups of tensors, densities, and whether
gradients are sent sparse or dense."""
