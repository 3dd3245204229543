"""Places of recurrent states: those that a row goes on from, and those that it leaves (W5).

In a block table a state lies in a column; in a pool of their own an adapter names the places.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from kvproof.harness.contract.whole_engine import StateWrite
from kvproof.harness.whole_engine.device_requests import Work
from kvproof.harness.whole_engine.memory import Pool


def read(work: Work, group: int, pool: Pool) -> int:
    """Return the place of the state after the tokens before a row."""
    reads = work.row.groups[group]
    if reads.use is not None:
        return reads.use.read
    column = pool.visibility.first_block(work.start, pool.block_size)
    return int(reads.table[reads.state if reads.states else column])


def writes(work: Work, group: int, pool: Pool) -> Sequence[StateWrite]:
    """Return the states that a row leaves, in their order."""
    reads = work.row.groups[group]
    if reads.use is not None:
        return reads.use.writes
    columns, first = reads.states, work.known
    if not columns:
        columns, first = [(work.end - 1) // pool.block_size], work.end
    places = [int(reads.table[column]) for column in columns]
    return [StateWrite(place, length) for length, place in enumerate(places, first)]


def written_twice(work: Sequence[Work], group: int, pool: Pool) -> list[int]:
    """Return the places in a pool of their own that a launch writes twice.

    The rows of a launch have no order. The places of a table may be of no use to a request: two
    columns can name one block.
    """
    every = [each for each in work if each.row.groups[group].use is not None]
    places = Counter(
        (state.place, part)
        for each in every
        for state in writes(each, group, pool)
        for part in ({state.part} if state.part else {layer.part for layer in pool.layers})
    )
    return [place for (place, _), count in places.items() if count > 1]
