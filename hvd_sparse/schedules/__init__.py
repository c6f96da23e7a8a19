"""Schedules, which set the density of every step. Each schedule has a file of its own."""
