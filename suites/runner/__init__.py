"""Registry, levels, runs, replay.

In: a target and a level. Out: events of a run. Imports all suites.
"""
