"""The store under contract with several clients, and the bounds of its content."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from kvproof.reference.stores.object_store import Lease, ObjectStore
from kvproof.suites.framework.component_suite import Config
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.cache_server import contract_properties as seen
from kvproof.suites.reference.cache_server.model import content, key


class Traits(NamedTuple):
    largest: int
    capacity: int = 0
    leases_hold: bool = True
    counts: bool = True
    least_recent_first: bool = False
    restart: Callable[[], None] | None = None


class Provider(Protocol):
    """An implementation under test."""

    @property
    def name(self) -> str:
        """The name in reports."""

    @property
    def traits(self) -> Traits:
        """Its promises."""

    def fresh(self, clients: int) -> Sequence[ObjectStore]:
        """Return clients of one empty store; those returned before are not used any more."""


class Held(NamedTuple):
    """A lease, and the numbers of its requested objects."""

    lease: Lease
    numbers: Sequence[int]
    lives: dict[int, int]
    """Object -> how often it had been dropped when it was acquired."""

    @property
    def there(self) -> list[int]:
        """Numbers of the objects that the lease contains."""
        return [
            n for n, view in zip(self.numbers, self.lease.views, strict=True) if view is not None
        ]


class StoreContractMachine:
    def __init__(self, provider: Provider, config: Config, coverage: Coverage) -> None:
        self.clients: int = config["clients"]
        self._traits = provider.traits
        self._sizes: list[int] = config["sizes"]
        self._stores = provider.fresh(self.clients)
        self._coverage = coverage
        self._leases: list[Held] = []
        self._old: list[Held] = []
        """Leases from before a restart: their bytes stay, but the store has no record of them."""
        self._may: set[int] = set()
        self._must: set[int] = set()
        """A subset of `_may`: neither dropped nor possibly evicted."""
        self._writer: dict[int, int] = {}
        self._drops: Counter[int] = Counter()
        self._recent: list[int] = []
        """Present objects, the least recently used first."""

    def apply(self, verb: str, **arguments: Any) -> object:
        """Run one operation; then read the bytes of all leases again, and count."""
        answer = getattr(self, f"_{verb}")(**arguments)
        self._judge_leases()
        self._judge_status()
        return answer

    def _store(self, *, client: int, keys: list[int]) -> object:
        numbers = list(dict.fromkeys(keys))
        before = self._there(client)
        objects = {key(n): content(key(n), self._sizes[n]) for n in numbers}
        self._may, self._must = self._may | set(numbers), set()
        stored = self._stores[client].store(objects)
        now = self._there(client)
        kept = {n for n in numbers if key(n) in stored}
        self._coverage.check(
            "what_is_stored_is_there",
            stored <= set(objects) and kept <= now,
            lambda: f"store returned {len(stored)} keys; of {sorted(kept)} only {now & kept} stay",
        )
        self._coverage.event(seen.AGAIN, before & kept)
        self._coverage.event(seen.LEFT_OUT, set(numbers) - kept)
        self._coverage.event(seen.EVICTED, before - now)
        self._made_room(before, now, numbers)
        self._writer.update(dict.fromkeys(kept - before, client))
        self._may, self._must = now | self._doomed(), now - self._doomed()
        self._used([n for n in numbers if n in kept])
        return f"{sorted(kept)} of {numbers} are there"

    def _made_room(self, before: set[int], now: set[int], numbers: Sequence[int]) -> None:
        wanted = set(numbers)
        everything = sum(self._sizes[n] for n in before | wanted)
        everything += sum(self._sizes[n] for n, _ in self._dropped())
        roomy = not self._traits.capacity or everything <= self._traits.capacity
        missing = (before | wanted) - now
        kept_for = wanted | (set(self._leased()) if self._traits.leases_hold else set())
        self._coverage.check(
            "objects_go_only_for_room",
            not (missing if roomy else before & kept_for - now),
            lambda: (
                f"{sorted(missing)} are not there after a store of {numbers}: {everything} bytes "
                f"in all, room for {self._traits.capacity or 'everything'}"
            ),
        )
        if self._traits.least_recent_first:
            self._went_in_order(before, now, kept_for)

    def _went_in_order(self, before: set[int], now: set[int], kept_for: set[int]) -> None:
        could_go = [n for n in self._recent if n in before - kept_for]
        gone = [n for n in could_go if n not in now]
        self._coverage.check(
            "objects_go_only_for_room",
            gone == could_go[: len(gone)],
            lambda: f"{gone} were evicted, the least recently used are {could_go}",
        )

    def _lookup(self, *, client: int, keys: list[int]) -> object:
        found = self._stores[client].lookup([key(n) for n in keys])
        self._judge_found(keys, found)
        return found

    def _acquire(self, *, client: int, keys: list[int]) -> object:
        there = self._there(client)
        lease = self._stores[client].acquire([key(n) for n in keys])
        held = Held(lease, keys, {n: self._drops[n] for n in keys})
        self._leases.append(held)
        self._coverage.check(
            "lookup_and_acquire_agree",
            [view is not None for view in lease.views] == [n in there for n in keys],
            lambda: f"of {keys}, {sorted(there)} were there and {held.there} were acquired",
        )
        self._judge_bytes("an_object_is_whole_or_not_there", held)
        self._coverage.event(seen.READ, any(self._writer.get(n) != client for n in held.there))
        self._coverage.event(seen.HELD, max(self._leased().values(), default=0) > 1)
        self._used(held.there)
        return f"{held.there} of {keys}"

    def _release(self, *, lease: int) -> object:
        everything = [*self._leases, *self._old]
        if lease >= len(everything):
            return None
        held = everything.pop(lease)
        held.lease.release()
        held.lease.release()
        if lease >= len(self._leases):
            self._old = everything[len(self._leases) :]
            return f"{held.numbers} of before are released"
        del self._leases[lease]
        self._used([n for n in held.there if n in self._may and held.lives[n] == self._drops[n]])
        return f"{held.numbers} are released"

    def _drop(self, *, client: int, keys: list[int]) -> object:
        before, numbers = self._there(client), set(keys)
        count = self._stores[client].drop([key(n) for n in keys])
        self._coverage.event(seen.GONE, before & numbers)
        self._coverage.event(seen.DROPPED, numbers & set(self._leased()) & before)
        self._forget(numbers)
        return self._judge_count(count, before & numbers)

    def _clear(self, *, client: int) -> object:
        before = self._there(client)
        count = self._stores[client].clear()
        self._coverage.event(seen.CLEARED, before)
        self._forget(set(self._may))
        return self._judge_count(count, before)

    def _judge_count(self, count: int, were: set[int]) -> object:
        self._coverage.equal("what_was_dropped_is_gone", count, len(were), "dropped objects:")
        return count

    def _restart(self) -> object:
        if self._traits.restart is None:
            return None
        self._coverage.event(seen.RESTARTED, self._may)
        self._traits.restart()
        self._must.clear()
        self._old += self._leases
        self._leases = []
        return "restarted"

    def _forget(self, numbers: set[int]) -> None:
        """Objects under a lease may stay until it ends."""
        self._must -= numbers
        self._drops.update(numbers)
        self._may -= numbers - self._doomed()

    def _doomed(self) -> set[int]:
        """Dropped under a lease: such an object may be found until the lease ends."""
        return {number for number, _ in self._dropped()}

    def _dropped(self) -> set[tuple[int, int]]:
        """Objects dropped under a lease, by life: stored again, an object takes room twice."""
        return {
            (n, held.lives[n])
            for held in self._leases
            for n in held.there
            if held.lives[n] < self._drops[n]
        }

    def _used(self, numbers: Sequence[int]) -> None:
        """Within one call the first object is the oldest."""
        used = list(dict.fromkeys(numbers))
        self._recent = [n for n in self._recent if n not in used] + used

    def _leased(self) -> Counter[int]:
        return Counter(
            n
            for held in self._leases
            for n in set(held.there)
            if held.lives[n] == self._drops[n]
        )  # fmt: skip

    def _there(self, client: int) -> set[int]:
        found = self._stores[client].lookup([key(n) for n in range(len(self._sizes))])
        self._judge_found(list(range(len(self._sizes))), found)
        return {n for n, there in enumerate(found) if there}

    def _judge_found(self, numbers: Sequence[int], found: Sequence[bool]) -> None:
        there = {n for n, yes in zip(numbers, found, strict=True) if yes}
        self._coverage.check(
            "what_was_dropped_is_gone",
            there <= self._may,
            lambda: (
                f"{sorted(there - self._may)} were found, which were never stored or are dropped"
            ),
        )
        self._coverage.check(
            "objects_go_only_for_room",
            self._must & set(numbers) <= there,
            lambda: f"{sorted(self._must & set(numbers) - there)} are gone, and nothing was stored",
        )

    def _judge_leases(self) -> None:
        for held in (*self._leases, *self._old):
            self._judge_bytes("a_lease_holds_its_bytes", held)

    def _judge_bytes(self, prop: str, held: Held) -> None:
        for number, view in zip(held.numbers, held.lease.views, strict=True):
            wrong = view is not None and view != content(key(number), self._sizes[number])
            self._coverage.check(
                prop,
                not wrong,
                lambda n=number, v=view: f"object {n} reads {bytes(v[:8]).hex()}, {len(v)} bytes",  # type: ignore[misc]
            )

    def _judge_status(self) -> None:
        reported = self._stores[0].status()
        there = self._there(0)
        leased = len(set(self._leased()))
        bytes_there = sum(self._sizes[n] for n in there)
        exact = (reported.objects, reported.bytes) == (len(there), bytes_there)
        held = reported.pinned == leased or self._doomed()
        self._coverage.check(
            "the_status_counts_what_is_there",
            (exact and held) or not self._traits.counts,
            lambda: (
                f"the status is {reported}: {len(there)} of {bytes_there} bytes, {leased} leased"
            ),
        )
