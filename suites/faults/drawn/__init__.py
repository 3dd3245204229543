"""Faults drawn over a subject's own code: each sample is new, so no suite can be tuned to it.

In: a target, a size and a seed. Out: planted faults on lines that the suites execute. Imports the
catalogue, and suites to find the executed lines.
"""
