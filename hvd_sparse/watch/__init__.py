"""The watchdog, which ends a process that waits too long, and names the ranks for which it
waits."""
