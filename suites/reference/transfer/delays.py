"""Streams whose work happens as late, and in as odd an order, as waits and events allow."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from typing import Any


class Node:
    def __init__(self, work: Callable[[], None], before: Collection[Node]) -> None:
        self.work = work
        self.done: bool = False
        self.before = [node for node in before if not node.done]


class Delayed:
    def __init__(self, streams: DelayedStreams) -> None:
        self._streams = streams
        self._last: list[Node] = []
        self._waits: list[Node] = []

    def run(self, work: Callable[[], None]) -> None:
        node = Node(work, [*self._last, *self._waits])
        self._streams.nodes.append(node)
        self._last, self._waits = [node], []

    def record(self) -> tuple[Node, ...]:
        """Return all work that later work of this stream would wait for."""
        return (*self._last, *self._waits)

    def wait(self, event: Any) -> None:
        """Let later work wait for the work of an event."""
        self._waits += event or ()

    def done(self, event: Any) -> bool:
        """Whether all work of an event has happened."""
        return all(node.done for node in event or ())


class DelayedStreams:
    """A stream for the caller and one for copies; nothing runs before a wait for it."""

    def __init__(self, seed: int) -> None:
        self.nodes: list[Node] = []
        self.compute: Any = Delayed(self)
        self.copies: Any = Delayed(self)
        self._random = random.Random(seed)  # noqa: S311 - an order, not a secret

    @property
    def enqueued(self) -> int:
        """Number of works so far without a `finish`."""
        return len(self.nodes)

    def happen(self, event: Any) -> None:
        """Run the predecessors of an event, and nothing more."""
        wanted: list[Node] = []
        waiting = list(event or ())
        while waiting:
            node = waiting.pop()
            if not node.done and node not in wanted:
                wanted.append(node)
                waiting += node.before
        self._run(wanted)

    def finish(self) -> None:
        """Run everything."""
        self._run(self.nodes)
        self.nodes = []

    def _run(self, nodes: list[Node]) -> None:
        """Run nodes in an order drawn from all that are allowed."""
        left = [node for node in nodes if not node.done]
        while left:
            ready = [node for node in left if all(each.done for each in node.before)]
            node = self._random.choice(ready)
            node.work()
            node.done = True
            left.remove(node)
