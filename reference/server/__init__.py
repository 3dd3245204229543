"""An OpenAI-compatible HTTP server over the reference engine.

In: HTTP requests. Out: answers, streams, Prometheus metrics.
Imports the engine, `observe` and `language`.
"""
