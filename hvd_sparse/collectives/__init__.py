"""The collectives of ``collectives.contract``, over what actually moves bytes: one implementation a
file."""
