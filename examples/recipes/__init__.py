"""Parts that the examples of the papers share: options, data, networks, and the training."""
