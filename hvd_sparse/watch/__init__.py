"""The watchdog: finds the ranks that keep a step waiting, and ends a process that waits too
long."""
