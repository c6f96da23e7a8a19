"""The watchdog: who keeps a step waiting, and how the process ends then."""
