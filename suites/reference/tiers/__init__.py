"""Part `tiers`: host memory and disk below the pool, and the keys of what they hold."""
