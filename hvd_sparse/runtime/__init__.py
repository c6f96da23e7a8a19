"""What runs beside training: the watchdog, checkpoints, and going on in another world."""
