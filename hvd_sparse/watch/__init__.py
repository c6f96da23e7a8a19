"""The watchdog ends a process that waits too long, and reports for which ranks it waits."""
