"""Front door: the command line and the whole loop in one call."""
