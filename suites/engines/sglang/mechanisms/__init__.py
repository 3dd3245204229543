"""Predicates of SGLang's known failures: of its cache manager, and of its Mooncake managers.

In: a `Failed`. Out: whether it is the bug's own failure. Imports the framework and the harness.
"""
