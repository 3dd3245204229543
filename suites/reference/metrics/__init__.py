"""The part `metrics`: what is counted and logged is what happened (V2)."""
