"""Training that outlasts faults: the watchdog, checkpoints, and going on in another world."""
