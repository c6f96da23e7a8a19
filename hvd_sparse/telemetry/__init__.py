"""Telemetry: writers of records about a run. Each module has one writer."""
