"""Checkpoints, and states of elastic runs."""
