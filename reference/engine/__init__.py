"""The engine: queue, scheduler, steps, generation, migration.

In: requests with their options. Out: tokens, finish reasons, counters.
Imports all of the reference except `server` and `observe`.
"""

from kvproof.reference.engine.engine import Engine

__all__ = ["Engine"]
