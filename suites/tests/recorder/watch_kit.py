"""A toy engine that writes into shared memory, and its watcher in the same process."""

from __future__ import annotations

import time
from pathlib import Path

from kvproof.harness.recorder.entry import Arrival
from kvproof.harness.recorder.log_writer import Cache, LogWriter, Settings
from kvproof.harness.recorder.ring import SUFFIX, RingReader
from kvproof.harness.watch.watched import Kept, WatchedCache

RING = 1 << 16


def watched_writer(folder: Path, *, ring: int = RING, blocks: int = 64) -> LogWriter:
    cache = Cache("toy", "1", num_blocks=blocks, block_size=4)
    return LogWriter(cache, Settings(folder, ring, watched=True), lambda tokens, a, b: tokens[a:b])


def watcher(folder: Path, *, seconds: float = 60.0, most: int = 1 << 20) -> WatchedCache:
    (ring,) = folder.glob(f"*{SUFFIX}")
    return WatchedCache(RingReader(ring), Kept(folder / "incidents", seconds, most))


class Clock:
    """A clock that stands still until it is moved; it begins with the real time."""

    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


def cycle(to: LogWriter, number: int, *, salt: str | None = None) -> None:
    """A request of ten tokens that no other one begins like, from beginning to end."""
    tokens = list(range(1000 * number, 1000 * number + 10))
    blocks = [1 + (3 * number + index) % 60 for index in range(3)]
    name = f"request-{number}"
    to.admit(tokens, Arrival(name, salt=salt), known=10, hit=0, stop=10, blocks=blocks)
    to.release(name, "finish", blocks)
