"""What the index keeps alive (T4), and what serving and evicting cost (T5)."""
