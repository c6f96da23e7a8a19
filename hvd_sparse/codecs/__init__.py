"""Codecs, which encode the selected entries of a tensor as bytes, one codec in each file."""
