"""Overhead of a cache server against a plain copy of the same bytes, in the same run.

python -m kvproof.suites.tests.lab.stress.cache_server.bench --objects 64 --size 1MiB

Measurements alternate, so that load on the machine slows all of them alike.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from cyclopts import App

from kvproof.reference.cache_server.client import CacheClient
from kvproof.suites.reference.cache_server.model import key
from kvproof.suites.tests.lab.stress.cache_server.process import ServerProcess

app = App(result_action="return_value", help=__doc__)
CALLS = 200
"""Round trips per sample."""


class Figure(NamedTuple):
    """Samples of one measurement."""

    name: str
    unit: str
    samples: list[float]

    def __str__(self) -> str:
        middle, low, high = statistics.median(self.samples), min(self.samples), max(self.samples)
        return f"{self.name:<52} {middle:10.1f} {self.unit:<6} ({low:.1f} to {high:.1f})"


class Bench:
    """One client, with a source and a destination for the bytes of all objects."""

    def __init__(self, client: CacheClient, objects: int, size: int) -> None:
        self._client = client
        self._sizes = {key(number): size for number in range(objects)}
        self._source = memoryview(bytearray(os.urandom(size) * objects))
        self._target = memoryview(bytearray(objects * size))
        self._bytes = objects * size
        self._objects = {
            each: self._source[at * size : (at + 1) * size] for at, each in enumerate(self._sizes)
        }

    def run(self, repetitions: int) -> list[Figure]:
        """Measure everything in turns; the first turn, which touches all pages, does not count."""
        steps: dict[str, Callable[[], float]] = {
            "memcpy": self._memcpy,
            "store (reserve, copy, commit)": self._store,
            "retrieve (acquire, copy, release)": self._retrieve,
            "acquire and release, no copy": self._acquire,
            "reserve and commit, no copy": self._reserve,
        }
        samples: dict[str, list[float]] = {name: [] for name in steps}
        trips = []
        for turn in range(repetitions + 1):
            for name, step in steps.items():
                samples[name] += [step()] * bool(turn)
            began = time.perf_counter()
            for _ in range(CALLS):
                self._client.heartbeat()
            trips += [(time.perf_counter() - began) / CALLS] * bool(turn)
        return self._figures(samples, trips)

    def _figures(self, samples: dict[str, list[float]], trips: list[float]) -> list[Figure]:
        plain = samples["memcpy"]
        figures = [Figure("round trip of a message", "us", [each * 1e6 for each in trips])]
        for name, seconds in samples.items():
            if "no copy" in name:
                each = [one * 1e6 / len(self._sizes) for one in seconds]
                figures.append(Figure(f"{name}, per object", "us", each))
                continue
            figures.append(Figure(name, "GB/s", [self._bytes / one / 1e9 for one in seconds]))
            if seconds is not plain:
                share = [100 * a / b for a, b in zip(plain, seconds, strict=True)]
                figures.append(Figure("  of memcpy in the same turn", "%", share))
        return figures

    def _memcpy(self) -> float:
        size, began = next(iter(self._sizes.values())), time.perf_counter()
        for at, data in enumerate(self._objects.values()):
            self._target[at * size : (at + 1) * size] = data
        return time.perf_counter() - began

    def _store(self) -> float:
        self._client.drop(self._sizes)
        began = time.perf_counter()
        stored = self._client.store(self._objects)
        seconds = time.perf_counter() - began
        assert len(stored) == len(self._sizes)
        return seconds

    def _retrieve(self) -> float:
        at, began = 0, time.perf_counter()
        with self._client.acquire(list(self._sizes)) as lease:
            for view in lease.views:
                assert view is not None
                self._target[at : at + len(view)] = view
                at += len(view)
        return time.perf_counter() - began

    def _acquire(self) -> float:
        began = time.perf_counter()
        self._client.acquire(list(self._sizes)).release()
        return time.perf_counter() - began

    def _reserve(self) -> float:
        self._client.drop(self._sizes)
        began = time.perf_counter()
        self._client.reserve(self._sizes).commit()
        seconds = time.perf_counter() - began
        self._client.drop(self._sizes)
        self._client.store(self._objects)
        return seconds


@app.default
def main(*, objects: int = 64, size: int = 1 << 20, repetitions: int = 15) -> int:
    """Print medians, and the least and the most of all repetitions.

    Parameters
    ----------
    objects
        In one call.
    size
        Bytes of each.
    repetitions
        Turns.

    """
    with tempfile.TemporaryDirectory() as name:
        server = ServerProcess(Path(name), size=2 * objects * size + (1 << 20))
        with server, server.client() as client:
            figures = Bench(client, objects, size).run(repetitions)
    sys.stdout.write(f"{objects} objects of {size} bytes, {repetitions} turns\n")
    sys.stdout.write("".join(f"{figure}\n" for figure in figures))
    return 0


if __name__ == "__main__":
    sys.exit(app())
