"""Targets in this or in another process, and the environments of engines.

In: a target's name, a factory. Out: a handle with the verbs of
`Target`; an error when the process dies.
Imports `contract`.
"""
