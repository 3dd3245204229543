"""Messages of workers, put in order, and the index that follows from them.

A worker numbers its messages from 0 at each of its starts. Messages may be repeated, overtake each
other and get lost on their way: an index that skips one is wrong for ever, so a worker with a gap
is offered for nothing until the gap is closed, by the missing messages or by the whole cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kvproof.reference.router.worker_blocks import Content, Event, WorkerBlocks


class Worker(NamedTuple):
    """One cache: a rank of a worker's process group, which starts and ends as one."""

    name: int
    rank: int = 0


class Message(NamedTuple):
    """Changes of one cache."""

    start: int
    """Number of the worker's start; grows with each."""
    number: int
    """Counted from 0 since the start."""
    events: tuple[Event, ...]
    whole: bool = False
    """The events are all that is cached after the message of this number."""


class Snapshot(NamedTuple):
    """A router's knowledge, for another one."""

    starts: dict[int, int]
    """Worker -> oldest start that counts."""
    messages: tuple[tuple[Worker, Message], ...]


class Router:
    """The union of the workers' caches, as far as it is known."""

    def __init__(self, tiers: int = 1, snapshot: Snapshot | None = None) -> None:
        self._tiers = tiers
        self._starts: dict[int, int] = dict(snapshot.starts) if snapshot else {}
        self._streams: dict[Worker, _Stream] = {}
        for worker, message in snapshot.messages if snapshot else ():
            self.receive(worker, message)

    def receive(self, worker: Worker, message: Message) -> range:
        """Take a message; return the numbers of those that are missing before it can count."""
        newest = self._starts.get(worker.name, 0)
        if message.start < newest:
            return range(0)
        if message.start > newest:
            self._forget(worker.name)
            self._starts[worker.name] = message.start
        if worker not in self._streams:
            self._streams[worker] = _Stream(self._tiers)
        return self._streams[worker].take(message)

    def leave(self, name: int, start: int) -> None:
        """Forget a worker that ended; messages of that start that come later count no more."""
        if start >= self._starts.get(name, 0):
            self._forget(name)
            self._starts[name] = start + 1

    def _forget(self, name: int) -> None:
        for worker in [each for each in self._streams if each.name == name]:
            del self._streams[worker]

    def offers(self, prompt: Sequence[Content]) -> dict[Worker, tuple[int, ...]]:
        """Return the blocks at the start of a prompt that workers hold, by tier."""
        complete = ((w, each.blocks) for w, each in self._streams.items() if not each.early)
        runs = {worker: blocks.run(prompt) for worker, blocks in complete}
        return {worker: run for worker, run in runs.items() if any(run)}

    def snapshot(self) -> Snapshot:
        """Return all complete caches. A router made from it asks for the others."""
        messages = (
            (worker, Message(self._starts.get(worker.name, 0), *each.last()))
            for worker, each in self._streams.items()
            if not each.early and each.next
        )
        return Snapshot(dict(self._starts), tuple(messages))


class _Stream:
    """The messages of one start of a worker, in order."""

    def __init__(self, tiers: int) -> None:
        self._tiers = tiers
        self.blocks = WorkerBlocks(tiers)
        self.next = 0
        self.early: dict[int, Message] = {}
        """Messages after a gap, by number."""

    def take(self, message: Message) -> range:
        if message.whole and message.number >= self.next:
            self.blocks = WorkerBlocks(self._tiers)
            self._apply(message.events)
            self.next = message.number + 1
        elif message.number >= self.next:
            self.early[message.number] = message
        while self.next in self.early:
            self._apply(self.early[self.next].events)
            self.next += 1
        self.early = {n: each for n, each in self.early.items() if n >= self.next}
        return range(self.next, min(self.early, default=self.next))

    def last(self) -> tuple[int, tuple[Event, ...], bool]:
        """Return number, events and `whole` of a message that stands for all so far."""
        return self.next - 1, tuple(self.blocks.events()), True

    def _apply(self, events: Iterable[Event]) -> None:
        for event in events:
            self.blocks.apply(event)
