"""Component suite `system`: the engine with a symbolic model, against one without memory.

In: histories of requests. Out: verdicts. Imports `framework`, `reference.engine` and the files of
`tiers`.
"""
