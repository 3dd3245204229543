"""The HTTP server under load and under malformed requests."""
