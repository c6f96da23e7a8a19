"""Compares steps and whole trainings with several methods on hosts with a network of limited
bandwidth."""
