"""Cache reuse does not change what a model computes: shown on tiny models of real families."""
