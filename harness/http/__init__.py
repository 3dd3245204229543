"""A client for OpenAI-compatible servers: requests, responses, server-sent events.

In: the address of a server and requests. Out: bytes, events or answers; each server error becomes
one of a few reasons. Imports `harness.errors`.
"""
