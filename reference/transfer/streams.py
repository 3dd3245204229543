"""Queues of work in order, and events between them: CUDA's, or none at all on a CPU (G4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import torch

Event: TypeAlias = Any
"""Result of `record`; None: has happened already."""


class Stream(Protocol):
    """Runs work in the order in which it comes, some time after that."""

    def run(self, work: Callable[[], None]) -> None:
        """Enqueue work."""

    def record(self) -> Event:
        """Return an event that happens when all work so far is done."""

    def wait(self, event: Event) -> None:
        """Let no later work begin before the event."""

    def done(self, event: Event) -> bool:
        """Return whether an event of any stream has happened, without waiting."""


class Inline:
    """Work is done when it is enqueued."""

    def run(self, work: Callable[[], None]) -> None:
        """Do the work."""
        work()

    def record(self) -> Event:
        """Return an event that has happened already."""
        return None

    def wait(self, event: Event) -> None:
        """Go on: there is nothing to wait for."""

    def done(self, event: Event) -> bool:
        """Everything has happened already."""
        return event is None


class CudaStream:
    """A stream of a GPU."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream

    def run(self, work: Callable[[], None]) -> None:
        """Enqueue the launches of the work."""
        with torch.cuda.stream(self._stream):
            work()

    def record(self) -> Event:
        """Return a CUDA event."""
        return self._stream.record_event()

    def wait(self, event: Event) -> None:
        """Wait on the GPU, not on the host."""
        if event is not None:
            self._stream.wait_event(event)

    def done(self, event: Event) -> bool:
        """Ask the GPU."""
        return event is None or bool(event.query())


class Streams(Protocol):
    """The two streams of a transfer."""

    @property
    def compute(self) -> Stream:
        """Where the caller's work on the pages is, and packing and unpacking with it."""

    @property
    def copies(self) -> Stream:
        """Where bytes move between the host and the staging."""


class InlineStreams:
    """Both at once, in order."""

    compute: Stream = Inline()
    copies: Stream = Inline()


class CudaStreams:
    """The current stream of the moment, and one for copies."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.copies: Stream = CudaStream(torch.cuda.Stream(device))

    @property
    def compute(self) -> Stream:
        """The stream on which the caller launches."""
        return CudaStream(torch.cuda.current_stream(self._device))


def streams_of(device: torch.device) -> Streams:
    """Return the streams for layers on a device."""
    return CudaStreams(device) if device.type == "cuda" else InlineStreams()
