"""The part `evaluation`: what is asked of a server, and what its answers are told to be (E1-E3)."""
