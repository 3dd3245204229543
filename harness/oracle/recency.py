"""When each cached block was used last, by a clock that the harness moves with each operation (B3).

Engines differ in the use that counts: a hit, a store or a release. Two notes hold for all of them:
a block was used no earlier than it was stored or taken by a request (`Entry.taken`), and no later
than its last holder left or a request found it (`idle_since`, `touched`).
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Collection, Iterable

from kvproof.harness.model.fingerprints import Fingerprints
from kvproof.harness.oracle.cache_model import CacheModel
from kvproof.harness.oracle.contents import Entry
from kvproof.harness.oracle.group_layout import Layout

Place = tuple[int, int]
"""Group and content of a block."""


class Recency:
    """The clock of one history, and the uses that it stamps."""

    def __init__(self, model: CacheModel, layout: Layout, *, runs: bool, tree: bool) -> None:
        """`runs`: blocks of windows leave in runs, which are as recent as their last block."""
        self._model = model
        self._layout = layout
        self._tree = tree
        self._runs = runs and bool(layout.partly_visible)
        self.now = 0
        """Operations so far."""
        self._released: list[int] = []
        """Operations that released a request at once, in order."""

    def released(self) -> None:
        """Note that this operation released a request that has no step in flight."""
        self._released.append(self.now)

    def released_between(self, first: int, last: int) -> bool:
        """Return whether a request was released after operation `first` and up to `last`."""
        return bisect(self._released, first) < bisect(self._released, last)

    def settle(self, held: Collection[int]) -> None:
        """Note which cached blocks lost their last holder in this operation, and which got one."""
        left = self._model.settle(held, self.now)
        for entry in self._model.rows.values():
            entry.taken = entry.taken or self.now
        if not (self._runs and any(e.group in self._layout.partly_visible for e in left)):
            return
        mine = {id(entry) for entry in left}
        for chain in self._chains(self._model.cached.values()):
            if any(id(entry) in mine for entry in chain):
                for entry in chain:
                    entry.touched = self.now

    def of_runs(self, gone: Iterable[Entry]) -> dict[Place, int]:
        """Return when the chain of each block of a window, those just `gone` included, was used."""
        found: dict[Place, int] = {}
        for chain in self._chains((*self._model.cached.values(), *gone)):
            last = max(entry.used(now=self.now) for entry in chain)
            found.update(((entry.group, entry.content), last) for entry in chain)
        return found

    def _chains(self, entries: Iterable[Entry]) -> Iterable[list[Entry]]:
        local = [entry for entry in entries if entry.group in self._layout.partly_visible]
        above = {(entry.group, entry.content): entry.parent for entry in local}
        chains: dict[Place, list[Entry]] = {}
        for entry in local:
            first = entry.content
            while (entry.group, above[entry.group, first]) in above:
                first = above[entry.group, first]
            chains.setdefault((entry.group, first), []).append(entry)
        return chains.values()

    def found(self, prints: Fingerprints) -> None:
        """Note that a request may have used all that is cached of it.

        In a tree its last block may be cut from those that follow, which counts as use of them too.
        """
        pool, children = self._model.pool, self._only_children()
        for group in self._layout.attention:
            keys = [key for key in self._model.keys(prints, group) if key in pool.by_content]
            last = keys[-1] if keys else 0
            while last and (last := children.get((group, last), 0)):
                keys.append(last)
            pool.touch(keys, self.now)
        self._model.touch_states(self.states(prints), self.now)

    def states(self, prints: Fingerprints) -> set[int]:
        """Return the contents of the states after each token of a request."""
        salts = self._layout.state_salts.values()
        return {content for salt in salts for content in (prints ^ salt).tolist()}

    def _only_children(self) -> dict[Place, int]:
        """Return the content after each block of a tree that one block alone follows, else 0."""
        found: dict[Place, int] = {}
        for entry in self._model.cached.values() if self._tree else ():
            at = (entry.group, entry.parent)
            found[at] = entry.content if found.get(at, entry.content) == entry.content else 0
        return found
