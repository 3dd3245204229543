"""The part `settings`: what is refused before there is a cache (K1, A3)."""
