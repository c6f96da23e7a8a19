"""The watchdog, which ends a process that waits too long, and names the ranks it waits for."""
