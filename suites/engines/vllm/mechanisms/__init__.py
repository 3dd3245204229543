"""Predicates of vLLM's known failures: of its cache manager, of its loop, of stores in its loop.

In: a `Failed`. Out: whether it is the bug's own failure. Imports the framework and the harness.
"""
