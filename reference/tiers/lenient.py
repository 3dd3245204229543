"""A store whose server may be gone: nothing is there then, and no request fails for it (C8)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from kvproof.reference.stores.object_store import (
    Bytes,
    Lease,
    ObjectStore,
    StoreStatus,
    StoreUnavailable,
)
from kvproof.reference.stores.remote_breaker import Breaker

LOG = logging.getLogger("kvproof.reference.tiers.tiers")
BACKOFF_S = 5.0
"""Seconds in which a store that could not be had is left alone: each attempt delays a step."""

T = TypeVar("T")


class Lenient:
    """An `ObjectStore` that never raises `StoreUnavailable`, over one that may."""

    def __init__(self, store: ObjectStore, *, backoff_s: float = BACKOFF_S) -> None:
        self._store = store
        self._breaker = Breaker(failures=1, backoff_s=backoff_s)
        self.failures = 0

    def store(self, objects: Mapping[bytes, Bytes]) -> frozenset[bytes]:
        """See `ObjectStore`."""
        return self._try(lambda: self._store.store(objects), frozenset())

    def lookup(self, keys: Sequence[bytes]) -> list[bool]:
        """See `ObjectStore`."""
        return self._try(lambda: self._store.lookup(keys), [False] * len(keys))

    def acquire(self, keys: Sequence[bytes]) -> Lease:
        """See `ObjectStore`."""
        return self._try(lambda: self._store.acquire(keys), Lease([None] * len(keys)))

    def drop(self, keys: Iterable[bytes]) -> int:
        """See `ObjectStore`."""
        return self._try(lambda: self._store.drop(keys), 0)

    def clear(self) -> int:
        """See `ObjectStore`."""
        return self._try(self._store.clear, 0)

    def status(self) -> StoreStatus:
        """See `ObjectStore`."""
        return self._try(self._store.status, StoreStatus(0, 0, 0, 0))

    def _try(self, call: Callable[[], T], nothing: T) -> T:
        if not self._breaker.allows():
            return nothing
        try:
            answer = call()
        except StoreUnavailable as error:
            self.failures += 1
            if self._breaker.failed():
                text = "remote store: %s; what it has is missed, next attempt in %g s"
                LOG.warning(text, error, self._breaker.backoff_s)
            return nothing
        if self._breaker.succeeded():
            LOG.warning("remote store: answers again")
        return answer
