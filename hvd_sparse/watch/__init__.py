"""The watchdog ends a process that waits too long, and reports the ranks that it waits for."""
