"""Compares training steps of several methods on hosts with a network of limited bandwidth."""
