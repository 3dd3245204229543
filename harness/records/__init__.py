"""Run directories: run.json, events.jsonl, and the types of events.

In: events of a run. Out: the same events, read back from any version since 0.2.
Imports `harness.errors` only; computes nothing.
"""
