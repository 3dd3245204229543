"""Known failures of engines as predicates over a violation and its history, a module an engine.

In: a `Failed`. Out: whether it is the finding's own failure. Imports the harness only. A predicate
is as narrow as its finding: whatever else breaks the same property is a new failure.
"""
