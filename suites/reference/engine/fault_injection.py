"""Tiers of the engine under test: files in memory, and objects that come late or never."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvproof.suites.framework.component_suite import Config
from kvproof.suites.reference.tiers.files import MemoryFiles


class Slow:
    """A source with delayed objects; loses some objects of a fetch."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self.where = source.where
        self.late = 0
        """Polls until the next fetches complete."""
        self.lose = ""
        """Lost objects of the next fetch: the `first`, the `last`, `all`, or none."""
        self.happened: set[str] = set()
        """The fault of the last fetch."""

    def fetch(self, keys: Sequence[bytes]) -> Any:
        """Begin to read."""
        lose, self.lose = self.lose, ""
        self.happened = {"late"} if self.late else set()
        gone = {"first": [0], "last": [len(keys) - 1], "all": range(len(keys))}.get(lose, [])
        if gone:
            self.happened.add("failed" if len(gone) == len(keys) else "failed in part")
        return _Slow(self._source.fetch(keys), self.late, set(gone))


class _Slow:
    def __init__(self, fetch: Any, polls: int, gone: set[int]) -> None:
        self._fetch, self._polls, self._gone = fetch, polls, gone
        self._cancelled = False

    def poll(self) -> Any:
        assert not self._cancelled, "polled after it was cancelled"
        self._polls -= 1
        if self._polls >= 0:
            return None
        lease = self._fetch.poll()
        if not self._gone:
            return lease
        views = enumerate(lease.views)
        return _Lost(lease, [None if at in self._gone else view for at, view in views])

    def cancel(self) -> None:
        self._cancelled = True
        self._fetch.cancel()


def give_tiers(engine: Any, config: Config, modules: Any) -> None:
    tiers, given = engine.tiers, config["tiers"]
    if given["disk"]:
        tiers.disk = modules.disk_tier.DiskTier(MemoryFiles(), given["disk"])
        tiers.host.below.stores["disk"] = tiers.disk
    tiers.patience = given["patience"]
    tiers.source = Slow(tiers.source)


class _Lost:
    def __init__(self, lease: Any, views: Sequence[Any]) -> None:
        self.views, self._lease = tuple(views), lease

    def release(self) -> None:
        self._lease.release()


def damage(engine: Any) -> bool:
    """Flip a bit in the oldest file; returns whether there is one."""
    if engine.tiers is None or engine.tiers.disk is None:
        return False
    files = engine.tiers.disk.files
    name = next(iter(files.content), None)
    if name is None:
        return False
    data = files.content[name]
    files.content[name] = data[:-1] + bytes([data[-1] ^ 1])
    return True
