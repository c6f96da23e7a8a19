"""Formats of the data that ranks send: carriers, messages, frames and padded blocks."""
