"""cache_server."""
