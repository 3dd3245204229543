"""The suites that a fault has survived, in a file: a run that is cut off goes on with the next."""

from __future__ import annotations

from pathlib import Path

import msgspec

from kvproof.harness.records.run_directory import store

FILE = "survived.json"


class Cost(msgspec.Struct, frozen=True):
    """One suite that has not found the fault."""

    cases: int
    seconds: float


class Survived:
    """Suites, by name; without a path they are kept for this process alone."""

    def __init__(self, path: Path | None = None) -> None:
        """Read the file of an earlier part of the run, if there is one."""
        self._path, self._suites = path, dict[str, Cost]()
        if path and path.exists():
            self._suites = msgspec.json.decode(path.read_bytes(), type=dict[str, Cost])

    def cost(self, suite: str) -> Cost | None:
        """Return the cost of a suite that the fault has survived; None: it has not run."""
        return self._suites.get(suite)

    def add(self, suite: str, cost: Cost) -> None:
        """Keep a suite."""
        self._suites[suite] = cost
        if self._path:
            store(self._path, msgspec.json.encode(self._suites))
