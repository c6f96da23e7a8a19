"""Saving and moving state: checkpoints, and elastic runs."""
