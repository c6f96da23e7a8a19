"""Exchanges, which combine the ranks' selections by collectives, one exchange in each file."""
