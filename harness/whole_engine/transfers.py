"""Copies outside the compute stream: they end late, in any order that the machine allows."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass
class Transfer:
    """Bytes on their way; `run` moves them, once, when the transfer ends."""

    number: int
    due: int
    """Tick from which on it may end by itself."""
    submitted: int
    """Launches that were submitted before it."""
    after: int
    """Launches that the machine completes before it, because a stream waits for them."""
    stream: str
    """Transfers of one stream end in the order of their submission."""
    run: Callable[[], None]
    reads: Sequence[int]
    """Device blocks that it reads."""
    writes: Sequence[int]
    """Device blocks that it writes."""
    memory: str = ""
    """The memory of the device blocks."""
    part_of: str = ""
    """Name of several transfers that write parts of the same blocks, in any order."""
    beginnings: Mapping[int, int] = field(default_factory=dict)
    """Block that it reads -> slots of it that count; launches go on after them."""
    tick: int = 0
    """Tick at which it was submitted."""
    ended: int = -1
    """Tick at which it ended; -1: it is under way."""
    done: bool = False


@dataclass
class Transfers:
    """Transfers under way; a seed gives the order of those that are due together."""

    seed: int
    delay: int = 0
    """Ticks between submission and end of those that are submitted now."""
    twice: bool = False
    """The end of a copy is reported a second time, by connectors that can be made to."""
    pending: list[Transfer] = field(default_factory=list)
    recent: list[Transfer] = field(default_factory=list)
    """Submitted since it was last cleared."""
    stored: Counter[tuple[str, int]] = field(default_factory=Counter)
    """(Memory, block) -> copies that read it since the last launch."""
    count: int = 0

    def __post_init__(self) -> None:
        """Start the sequence of completion orders."""
        self._order = random.Random(self.seed)  # noqa: S311 - reproducible, not secret

    def add(
        self,
        run: Callable[[], None],
        *,
        tick: int,
        submitted: int,
        after: int,
        stream: str,
        reads: Sequence[int] = (),
        writes: Sequence[int] = (),
        memory: str = "",
        part_of: str = "",
        late: int = 0,
        beginnings: Mapping[int, int] = MappingProxyType({}),
    ) -> Transfer:
        """Put a transfer under way."""
        self.count += 1
        before = [each.due for each in self.pending if each.stream == stream]
        due = max([tick + self.delay + late, *before])
        self.stored.update((memory, each) for each in reads)
        transfer = Transfer(
            self.count, due, submitted, after, stream, run, reads, writes, memory, part_of,
            beginnings, tick,
        )  # fmt: skip
        self.pending.append(transfer)
        self.recent.append(transfer)
        return transfer

    def due(self, tick: int) -> list[Transfer]:
        """Return the transfers that end by now: streams in the seed's order, each in its own."""
        ready = [each for each in self.pending if each.due <= tick]
        streams = sorted({each.stream for each in ready})
        self._order.shuffle(streams)
        return [each for stream in streams for each in ready if each.stream == stream]

    def before(self, transfer: Transfer) -> list[Transfer]:
        """Return the transfers of its stream that must end before it."""
        return [
            each
            for each in self.pending
            if each.stream == transfer.stream and each.number < transfer.number
        ]

    def end(self, transfer: Transfer, *, tick: int) -> None:
        """Move the bytes, unless that was done."""
        if not transfer.done:
            transfer.done, transfer.ended = True, tick
            self.pending.remove(transfer)
            transfer.run()
