"""A request and its objects: requested, on their way, here, or failed (C8)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvproof.reference.cache.request_state import RequestState
from kvproof.reference.stores.object_store import Lease
from kvproof.reference.tiers.fetch import Fetch, Source
from kvproof.reference.tiers.plan import Need


class Waiting:
    """Objects that one request has from the tiers so far; it holds leases until `release`."""

    def __init__(
        self, source: Source, request: RequestState, links: list[bytes], *, far: bool
    ) -> None:
        self.links, self.far = links, far
        self._request = request
        self.views: dict[bytes, memoryview] = {}
        self.places: dict[bytes, str | None] = {}
        """Tier of each object at the time of its request (V1)."""
        self.failed: set[bytes] = set()
        """Failed objects: they are not waited for twice."""
        self.polls = 0
        """Steps in which something was still on its way."""
        self._source = source
        self._fetch: Fetch | None = None
        self._fetched: list[Need] = []
        self._expected: dict[bytes, bool] = {}
        self._leases: list[Lease] = []

    @property
    def loading(self) -> bool:
        """Return whether an object is on its way."""
        return self._fetch is not None

    def concerns(self, request: RequestState) -> bool:
        """Return whether a request is the waiting one, and not another with its id (H3)."""
        asked = self._request
        return (asked.tokens, asked.namespace, asked.segments) == (
            request.tokens, request.namespace, request.segments,
        )  # fmt: skip

    def expect(self, keys: list[bytes]) -> None:
        """Ask for many objects at once."""
        places = self._source.where(keys)
        self._expected |= {key: place is not None for key, place in zip(keys, places, strict=True)}

    def look_again(self) -> None:
        """Believe no answer to `expect` any longer: objects come and go."""
        self._expected.clear()

    def there(self, key: bytes) -> bool:
        """Return whether a plan may count on an object."""
        if key in self.views:
            return True
        if key in self.failed:
            return False
        expected = self._expected.get(key)
        return self._source.where([key])[0] is not None if expected is None else expected

    def ask(self, needs: Sequence[Need]) -> None:
        """Begin to read the missing objects, unless a fetch is under way."""
        lost = [need for need in needs if need.key in self.failed]
        assert not lost, f"a plan counts on {lost}, which did not come"
        if self._fetch is None:
            self._fetched = [need for need in needs if need.key not in self.views]
            keys = [need.key for need in self._fetched]
            self.places |= zip(keys, self._source.where(keys), strict=True)
            self._fetch = self._source.fetch(keys)

    def poll(self, size: Callable[[str], int]) -> list[bytes] | None:
        """Take in arrived objects; returns keys of useless ones, None: all may still arrive.

        An object is useless if its size differs from the `size` of its part. Late ones may be good
        for others (H6).
        """
        lease = self._fetch.poll() if self._fetch is not None else None
        if lease is None:
            self.polls += 1
            return None
        self._fetch = None
        self._leases.append(lease)
        useless = []
        for need, view in zip(self._fetched, lease.views, strict=True):
            if view is not None and view.nbytes == size(need.part):
                self.views[need.key] = view
                continue
            self.failed.add(need.key)
            useless += [need.key] if view is not None else []
        return useless

    def release(self) -> None:
        """Let everything go; idempotent."""
        if self._fetch is not None:
            self._fetch.cancel()
        self._fetch = None
        self.views.clear()
        for lease in self._leases:
            lease.release()
        self._leases.clear()
