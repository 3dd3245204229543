"""Faults drawn over a subject's own code, for a power that nobody can tune to.

In: a target, a size and a seed. Out: planted faults on lines that the suites execute.
"""
