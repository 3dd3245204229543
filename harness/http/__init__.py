"""A client for OpenAI-compatible servers: requests, responses, server-sent events.

In: the address of a server and requests. Out: bytes, events or answers, and for everything that a
server may do wrong one of a few reasons. Imports `harness.errors`.
"""
