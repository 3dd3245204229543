"""How the tokens of a step are shared between requests (C1).

Whoever needs less than an equal share leaves the rest to the others. So a short prompt never waits
for a long one to end, and a long one goes on under any number of short ones: with n requests, each
gets an n-th of the tokens at least. If there are fewer tokens than requests, the oldest gets one
and the others take turns.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvproof.reference.engine.request_queue import Served


def share_budget(tokens: int, ready: Sequence[Served], head: Served | None) -> dict[str, int]:
    """Return how many tokens each of the requests may compute; some may get none.

    `ready` are running, in order of arrival. `head` waits and may be admitted: its share is kept
    back.
    """
    count = len(ready) + (head is not None)
    if count > tokens:
        order = [*ready[:1], *sorted(ready[1:], key=_waited_longest)]
        tokens -= head is not None and all(head.rank < request.rank for request in ready)
    else:
        order = sorted(ready, key=lambda request: request.wanted)
    shares = {}
    for request in order:
        share = min(request.wanted, max(1, tokens // count)) if tokens > 0 else 0
        shares[request.id] = share
        tokens, count = tokens - share, count - 1
    return shares


def by_arrival(request: Served) -> int:
    """Sort requests, the oldest first."""
    return request.rank


def _waited_longest(request: Served) -> tuple[int, int]:
    return request.last_step, request.rank
