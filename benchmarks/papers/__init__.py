"""Tables and figures of the papers behind the methods: ``python -m benchmarks.papers``."""
