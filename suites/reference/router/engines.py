"""Caches of workers, and the messages by which they tell their changes."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

Path: TypeAlias = tuple[int, ...]
"""A block, by the contents of the blocks up to it."""
State: TypeAlias = tuple[Counter[Path], ...]
"""Copies of each block, by tier."""
Event: TypeAlias = list[Any]
"""See `harness.contract.router_index`."""


def run(state: State, prompt: Sequence[int]) -> list[int]:
    """Return the blocks at the start of a prompt, by tier, where each continues the one before."""
    found, at = [], 0
    for tier in state:
        start = at
        while at < len(prompt) and tier[tuple(prompt[: at + 1])]:
            at += 1
        found.append(at - start)
    return found


def lacks(state: State, prompt: Sequence[int], claimed: Sequence[int]) -> bool:
    """Whether a block of a claimed run is not in the tier that is claimed."""
    at = 0
    for tier, count in zip(state, claimed, strict=True):
        if any(not tier[tuple(prompt[: n + 1])] for n in range(at, at + count)):
            return True
        at += count
    return False


class Sent(NamedTuple):
    """A message of a rank."""

    events: list[Event]
    state: State
    """After the message."""


class Rank:
    """One cache since its start, and its messages."""

    def __init__(self, tiers: int, salt: str) -> None:
        self.tiers: State = tuple(Counter() for _ in range(tiers))
        self.log: list[Sent] = []
        self.evicted: set[Path] = set()
        self.gaps: set[Path] = set()
        """Blocks that left before one that followed them."""
        self._salt = salt
        self._events: list[Event] = []

    def key(self, path: Path) -> int | None:
        """Return the name of a block; None before a first one."""
        text = f"{self._salt}{path}".encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=7).digest()) if path else None

    def send(self) -> bool:
        """End a message, if there are changes."""
        if self._events:
            self.log.append(Sent(self._events, tuple(map(Counter, self.tiers))))
            self._events = []
            return True
        return False

    def state(self, messages: int) -> State:
        """Return the cache after so many messages."""
        return self.log[messages - 1].state if messages else tuple(Counter() for _ in self.tiers)

    def store(self, path: Path, *, tier: int, again: int, chunk: int) -> None:
        """Store the blocks of a chain that are missing, and from `again` on all of them."""
        new = [n for n in range(1, len(path) + 1) if n > again or not self.tiers[tier][path[:n]]]
        chains: list[list[int]] = []
        for n in new:
            if not chains or chains[-1][-1] != n - 1 or len(chains[-1]) == chunk:
                chains.append([])
            chains[-1].append(n)
            self.tiers[tier][path[:n]] += 1
        self._events += [
            ["stored", self.key(path[: chain[0] - 1]),
             [[self.key(path[:n]), path[n - 1]] for n in chain], tier]
            for chain in chains
        ]  # fmt: skip

    def remove(self, paths: Iterable[Path], *, tier: int) -> None:
        """Remove one copy of each block."""
        taken = list(paths)
        self._events += [["removed", [self.key(path) for path in taken], tier]] * bool(taken)
        for path in taken:
            self.tiers[tier][path] -= 1
            if not self.tiers[tier][path]:
                del self.tiers[tier][path]
                self.evicted.add(path)
        self.gaps |= {
            path for path in taken if path not in self.tiers[tier] and self.followed(path, tier)
        }

    def clear(self, tier: int | None) -> None:
        """Empty a tier, or all of them."""
        self._events.append(["cleared", tier])
        for each in self.tiers if tier is None else [self.tiers[tier]]:
            each.clear()

    def leaves(self, tier: int) -> list[Path]:
        """Return the blocks that no block of the tier follows."""
        return sorted(path for path in self.tiers[tier] if not self.followed(path, tier))

    def behind(self, path: Path) -> bool:
        """Whether a block of a chain has left once, before one that followed it."""
        return any(path[:n] in self.gaps for n in range(1, len(path) + 1))

    def followed(self, path: Path, tier: int) -> bool:
        """Whether the tier holds a block that comes after this one."""
        return any(len(p) > len(path) and p[: len(path)] == path for p in self.tiers[tier])

    def whole(self) -> Iterator[Event]:
        """Yield events that lead from an empty cache to the one after the last message."""
        for number, tier in enumerate(self.log[-1].state):
            for path in sorted(tier):
                block = [[self.key(path), path[-1]]]
                yield from [["stored", self.key(path[:-1]), block, number]] * tier[path]


class Heard:
    """The messages of one rank that a router has got."""

    def __init__(self, cache: Rank) -> None:
        self.cache = cache
        self.next = 0
        self.early: set[int] = set()

    @property
    def state(self) -> State:
        """The cache after the messages that are complete."""
        return self.cache.state(self.next)

    def hear(self, number: int, *, whole: bool = False) -> None:
        """Note a message."""
        if whole and number >= self.next:
            self.next = number + 1
        elif number >= self.next:
            self.early.add(number)
        while self.next in self.early:
            self.next += 1
        self.early = {n for n in self.early if n >= self.next}

    @property
    def missing(self) -> list[int]:
        """First and last number that is missing; empty: none is."""
        return [self.next, min(self.early) - 1] if self.early else []

    @property
    def newest(self) -> int:
        """Messages up to the newest one."""
        return max(self.early, default=self.next - 1) + 1
