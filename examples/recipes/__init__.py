"""Code that the examples from papers share: options, data, networks and training."""
