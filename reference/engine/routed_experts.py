"""The experts of a request on its way: all computed tokens, the last one included (R2)."""

from __future__ import annotations

import numpy as np

from kvproof.reference.cache.cache_manager import CacheManager
from kvproof.reference.cache.expert_history import Recorded
from kvproof.reference.engine.request_queue import Served


def routed(cache: CacheManager, request: Served) -> Recorded | None:
    """Return the rows of the computed tokens of a running request; None if nobody keeps them.

    The cache manager does not know the token after the last computed one, and so leaves that one
    out; it was computed last, by this very request.
    """
    if cache.experts is None:
        return None
    count = request.computed
    rows, missing = cache.expert_rows(request.id)
    missing = tuple((start, min(stop, count)) for start, stop in missing if start < count)
    if len(rows) < count:
        assert request.last_row is not None
        rows = np.concatenate([rows, request.last_row.astype(rows.dtype)])
    return Recorded(rows[:count], missing)
