"""A client for OpenAI-compatible servers.

In: a request. Out: text, tokens, log-probabilities, or a reason.
Imports `harness.errors`.
"""
