"""Measuring a run, and choosing what is quickest in it."""
