"""Copies beside the compute stream: they end late, in any order that the machine allows."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass
class Transfer:
    """Bytes on their way; `run` moves them, once, when the transfer ends."""

    number: int
    due: int
    """Tick from which on it may end by itself."""
    after: int
    """Launches that the machine completes before it, because a stream waits for them."""
    run: Callable[[], None]
    reads: Sequence[int]
    """Device blocks that it reads."""
    writes: Sequence[int]
    """Device blocks that it writes."""
    done: bool = False


@dataclass
class Transfers:
    """Transfers under way; a seed gives the order of those that are due together."""

    seed: int
    delay: int = 0
    """Ticks between submission and end of those that are submitted now."""
    pending: list[Transfer] = field(default_factory=list)
    count: int = 0

    def __post_init__(self) -> None:
        """Start the sequence of completion orders."""
        self._order = random.Random(self.seed)  # noqa: S311 - reproducible, not secret

    def add(
        self,
        run: Callable[[], None],
        *,
        tick: int,
        after: int,
        reads: Sequence[int] = (),
        writes: Sequence[int] = (),
    ) -> Transfer:
        """Put a transfer under way."""
        self.count += 1
        transfer = Transfer(self.count, tick + self.delay, after, run, reads, writes)
        self.pending.append(transfer)
        return transfer

    def due(self, tick: int) -> list[Transfer]:
        """Return what ends by now, in the seed's order."""
        ready = [each for each in self.pending if each.due <= tick]
        self._order.shuffle(ready)
        return ready

    def end(self, transfer: Transfer) -> None:
        """Move the bytes, unless that was done."""
        if not transfer.done:
            transfer.done = True
            self.pending.remove(transfer)
            transfer.run()
