"""GPU streams with pauses between their works, so that a missing wait shows.

Copies of a few kilobytes are over before the next one is enqueued. With a pause before some works
the other stream overtakes them unless it waits.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

from kvproof.reference.transfer.streams import CudaStream

PAUSES = (0, 0, 0, 200_000, 1_500_000)
"""Lengths in cycles of the GPU: about 0.1 and 0.8 ms."""


class SlowStream(CudaStream):
    def __init__(self, stream: torch.cuda.Stream, streams: SlowStreams) -> None:
        super().__init__(stream)
        self._streams = streams

    def run(self, work: Callable[[], None]) -> None:
        """Enqueue a pause, then the work's launches."""
        pause = self._streams.pause()
        if pause:
            super().run(lambda: torch.cuda._sleep(pause))  # no public call keeps a stream busy
        super().run(work)

    def wait(self, event: Any) -> None:
        """Wait on the GPU, unless the streams are `deaf`."""
        if not self._streams.deaf:
            super().wait(event)


class SlowStreams:
    """The current stream of the moment, and one for copies. `deaf` ones wait for nothing."""

    def __init__(self, device: torch.device, seed: int, *, deaf: bool = False) -> None:
        self.deaf = deaf
        self.enqueued = 0
        self._device = device
        self._random = random.Random(seed)  # noqa: S311 - pauses, not a secret
        self.copies: Any = SlowStream(torch.cuda.Stream(device), self)

    @property
    def compute(self) -> Any:
        """The stream on which the caller launches."""
        return SlowStream(torch.cuda.current_stream(self._device), self)

    def pause(self) -> int:
        """Draw the pause before the next work."""
        self.enqueued += 1
        return self._random.choice(PAUSES)

    def happen(self, event: Any) -> None:
        if event is not None:
            event.synchronize()

    def finish(self) -> None:
        """Wait for everything."""
        torch.cuda.synchronize(self._device)
