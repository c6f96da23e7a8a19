"""The watchdog ends a process that waits too long for others, and reports which ranks are late."""
