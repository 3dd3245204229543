"""Stores of a connector whose own code copies between them and an engine's caches.

In: a connector of vLLM, the caches, our device. Out: caches as the connector sees them, with copies
in stream order, and stores that lose their content. Imports `harness.whole_engine`.
"""
