"""Streams and events of SGLang's cache controller, as transfers of the shadow device.

The scheduler's own stream has no work that lasts, so its events do not wait for forwards. A copy
waits for them by a fence alone: `wait_stream` with their stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import NamedTuple

from kvproof.harness.adapters.sglang_engine.running import RUNNING
from kvproof.harness.whole_engine.device import ShadowDevice
from kvproof.harness.whole_engine.transfers import Transfer

_NUMBERS = count()


class Copy(NamedTuple):
    """One launch of a kernel between the pool and the host."""

    move: Callable[[], None]
    memory: str
    """The memory of the pages in the pool."""
    reads: Sequence[int] = ()
    """Pages of the pool."""
    writes: Sequence[int] = ()


class Stream:
    """A stream of copies, or that of the forwards and of the scheduler."""

    def __init__(self, *_: object, **__: object) -> None:
        self._name = f"hicache {next(_NUMBERS)}"
        self._after = 0
        """Launches that its later copies wait for."""
        self.awaited: list[Transfer] = []
        """Copies of other streams that its later work waits for."""
        self._last: Transfer | None = None

    def submit(self, copy: Copy) -> None:
        """Put a copy under way, after those of this stream."""
        device, awaited = RUNNING.launches.device, tuple(self.awaited)
        number = device.submitted

        def run() -> None:
            for each in awaited:
                device.wait(each)
            _check_order(device, copy, number)
            copy.move()

        self._last = device.transfer(
            run, stream=self._name, ordered=False, memory=copy.memory, reads=copy.reads,
            writes=copy.writes, part_of=f"{self._name}, step {device.tick}",
        )  # fmt: skip
        self._last.after = self._after
        first = not device.transfers.before(self._last)
        if first and not device.transfers.delay and device.executed >= self._after:
            device.wait(self._last)  # nothing keeps it: it ends before launches that are queued
        tier = "stored in" if copy.reads else "loaded from"
        device.findings.saw(f"blocks are {tier} another tier")

    def under_way(self) -> list[Transfer]:
        """Return the copy after which everything submitted until now is done."""
        return [] if self._last is None or self._last.done else [self._last]

    def wait_event(self, event: Event) -> None:
        """Let the later work of this stream wait for an event."""
        self.awaited = [each for each in (*self.awaited, *event.last) if not each.done]

    def wait_stream(self, other: object) -> None:
        """Let the later work of this stream wait for all of another; a foreign one has forwards."""
        if isinstance(other, Stream) and other is not FORWARDS:
            self.awaited += other.under_way()
        else:
            self._after = RUNNING.launches.device.submitted

    def synchronize(self) -> None:
        """Wait for everything."""
        for each in self.under_way():
            RUNNING.launches.device.wait(each)

    def take_awaited(self) -> list[Transfer]:
        """Return the copies that the next launch waits for, and forget them."""
        found, self.awaited = [each for each in self.awaited if not each.done], []
        return found


def _check_order(device: ShadowDevice, copy: Copy, number: int) -> None:
    """Check that no launch up to a number has yet to write the pages of a copy that runs now."""
    groups = [at for at, pool in enumerate(device.memory.pools) if pool.memory == copy.memory]
    late = {
        int(slot) // device.memory.pools[group].block_size
        for launch in device.queue
        if launch.number <= number
        for row in launch.rows
        for group in groups
        for slot in row.groups[group].writes
    } & {*copy.reads, *copy.writes}
    device.findings.check(
        "blocks_in_flight_are_not_reused",
        not late,
        lambda: (
            f"a copy {'from' if copy.writes else 'to'} the host has blocks {sorted(late)}, which a "
            "launch that was submitted before it has yet to write"
        ),
    )


FORWARDS = Stream()
_current = [FORWARDS]


class Event:
    """A place in a stream of copies."""

    def __init__(self, *, enable_timing: bool = False) -> None:
        self.enable_timing = enable_timing
        self.last: list[Transfer] = []

    def record(self, stream: Stream | None = None) -> None:
        """Mark the end of the work submitted so far."""
        self.last = (stream or current_stream()).under_way()

    def query(self) -> bool:
        """Tell whether that work is done."""
        return all(each.done for each in self.last)

    def synchronize(self) -> None:
        """Wait for it."""
        for each in self.last:
            RUNNING.launches.device.wait(each)

    def wait(self, stream: Stream | None = None) -> None:
        """Let a stream wait for it."""
        (stream or current_stream()).wait_event(self)

    def elapsed_time(self, _: Event) -> float:
        """No time passes."""
        return 0.0


def current_stream() -> Stream:
    """Return the stream that kernels go to."""
    return _current[-1]


@contextmanager
def use(stream: Stream) -> Iterator[None]:
    """Let kernels go to a stream."""
    _current.append(stream)
    try:
        yield
    finally:
        _current.pop()


class DeviceModule:
    """The attributes that the engine's controller looks up in its `device_module`."""

    Stream, Event = Stream, Event
    current_stream = staticmethod(current_stream)
    stream = staticmethod(use)
