"""Part `access`: what a request may do with the cache, and why."""
