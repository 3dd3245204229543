"""The properties, one folder per subsystem, and the corpus of regression op logs."""
