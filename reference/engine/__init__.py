"""The engine: queue, scheduler, steps, generation, migration.

In: requests with their options. Out: tokens, finish reasons, counters.
Imports all of the reference except `server` and `observe`.
"""
