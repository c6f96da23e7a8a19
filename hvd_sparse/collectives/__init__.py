"""The collectives of ``core.collective``, over what actually moves bytes: one implementation a file."""
