"""Part `keys`: what the keys of blocks depend on, and that they are the same everywhere."""
