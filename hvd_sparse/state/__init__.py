"""Checkpoints, and the states from which an elastic run resumes."""
