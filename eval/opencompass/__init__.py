"""opencompass."""
