"""Where in a line of versions an outcome changes: binary search that skips untested ones.

The first and the last version have different outcomes, so that some two neighbours have, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

Outcome = Literal["fails", "holds", "untested"]


class Tried(NamedTuple):
    """One version that was tried."""

    version: str
    outcome: Outcome
    words: str = ""
    """The failure, or the reason why nothing was tested."""


class TurningPoint(NamedTuple):
    """The last version with the first outcome, and the first one with the last outcome."""

    before: Tried
    after: Tried
    between: tuple[str, ...]
    """Versions between both that could not be tested."""


def turning_point(versions: Sequence[str], attempt: Callable[[str], Tried]) -> TurningPoint | None:
    """Return where the outcome changes; None: both ends agree, or one could not be tested.

    Tries about log2 of the versions, oldest first in `versions`, and each at most once.
    """
    untested: set[int] = set()
    low, high = 0, len(versions) - 1
    ends = attempt(versions[low]), attempt(versions[high])
    if {each.outcome for each in ends} != {"fails", "holds"}:
        return None
    before, after = ends
    while open_ := [at for at in range(low + 1, high) if at not in untested]:
        middle = min(open_, key=lambda at: abs(2 * at - low - high))
        found = attempt(versions[middle])
        if found.outcome == "untested":
            untested.add(middle)
        elif found.outcome == before.outcome:
            low, before = middle, found
        else:
            high, after = middle, found
    return TurningPoint(before, after, tuple(versions[low + 1 : high]))
