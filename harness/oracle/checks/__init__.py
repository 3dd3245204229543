"""One file for each family of properties.

In: the oracle's state and one answer of the target. Out: violations.
Imports the oracle's state, never another check.
"""
