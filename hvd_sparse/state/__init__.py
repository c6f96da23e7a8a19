"""Checkpoints, and the states from which elastic runs resume."""
