"""Judges the cache of a running engine, in a process of its own.

In: lines of the recorder's hooks, through shared memory. Out: counts, incidents that replay reads.
Imports `recorder` and `oracle`.
"""
