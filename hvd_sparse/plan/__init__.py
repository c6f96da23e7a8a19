"""Planning from measurements of a run: groups, densities, and sparse or dense exchange."""
