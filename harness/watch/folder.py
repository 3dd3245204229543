"""The caches of all processes of an engine: rings and notes that appear in one folder."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from kvproof.harness.recorder.ring import REFUSED, SUFFIX, RingReader
from kvproof.harness.watch.watched import Incident, Kept, WatchedCache

_SLICE = 0.1
"""Seconds for one cache before the next gets its turn."""

_PAUSE = 0.02
"""Seconds between two looks where nothing is written."""


class WatchedFolder:
    """Judges all caches that write into a folder."""

    def __init__(self, folder: Path, kept: Kept) -> None:
        self._folder, self._kept = folder, kept
        self._rings: dict[Path, WatchedCache] = {}
        self._seen: set[Path] = set()
        self.refused: list[str] = []
        """Why caches are not judged."""

    @property
    def caches(self) -> list[WatchedCache]:
        """All caches so far, also those whose process has ended."""
        return list(self._rings.values())

    def work(self) -> list[Incident]:
        """Read the new lines of each cache, or wait a moment; returns the violations."""
        self._look()
        found: list[Incident] = []
        before = sum(cache.counts.lines for cache in self.caches)
        for cache in self.caches:
            found += cache.work(_SLICE)
        if before == sum(cache.counts.lines for cache in self.caches):
            time.sleep(_PAUSE)
        return found

    def drain(self) -> list[Incident]:
        """Read the rest once the engine has ended."""
        found, lines = self.work(), -1
        while lines != (lines := sum(cache.counts.lines for cache in self.caches)):
            found += self.work()
        return found

    def close(self) -> None:
        """Remove the rings whose writers have ended; the others belong to a running engine."""
        for path, cache in self._rings.items():
            if cache.ring.over():
                with suppress(OSError):
                    path.unlink()
            cache.ring.close()

    def _look(self) -> None:
        for path in sorted(self._folder.glob("*")):
            if path in self._seen:
                continue
            if path.suffix == REFUSED:
                self._seen.add(path)
                self.refused.append(path.read_text(encoding="utf-8"))
            elif path.suffix == SUFFIX:
                self._seen.add(path)
                self._rings[path] = WatchedCache(RingReader(path), self._kept)
