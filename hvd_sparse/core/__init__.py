"""The engine room: kernels, the wire format, and the walk of a step, on numpy alone."""
