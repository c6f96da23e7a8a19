"""The walk of gradients through one step, and the states that outlast it."""
