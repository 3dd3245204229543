"""An OpenAI-compatible HTTP server over the reference engine."""
