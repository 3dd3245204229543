"""Cached blocks and checkpoints by id and by content."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


@dataclass
class Entry:
    """One cached block."""

    content: int
    """Fingerprint at its last position, with the group mixed in."""
    parent: int
    """Fingerprint at the last position of the block before; 0 for the first."""
    idle_since: int | None = None
    """When its last holder left; None while it is held."""
    anchor: int = 0
    """For a window, chunk or state in a model with full attention: the full block at the same end.
    """
    group: int = 0
    beside: int = 0
    """Content of the block that one of a sidecar belongs to (Q2)."""
    ends_unit: bool = True
    tail: bool = False
    """A partial last block (T6): it goes before full ones."""
    touched: int = 0
    """When another request last hit it, or computed the same, without holding it in the end."""
    taken: int = 0
    """When it was stored, or last got a holder after a time without one: it was used then."""

    def used(self, *, now: int) -> int:
        """Return when it was last used; `now` while it is held."""
        return now if self.idle_since is None else max(self.idle_since, self.touched)


class Contents:
    """Entries by id and by content.

    Copies of a content and entries without their needed content are counted on each change, so two
    of the checks after every operation need no walk over the cache.
    """

    def __init__(self) -> None:
        self.by_id: dict[int, Entry] = {}
        self.by_content: dict[int, set[int]] = {}
        self.copied: set[int] = set()
        """Contents with more than one entry."""
        self.orphans = 0
        """Entries whose needed content is not here."""
        self.version = 0
        """Grows with every change."""
        self._needs: dict[int, int] = {}
        """Id -> content that must be here as well."""
        self._needed: Counter[int] = Counter()

    def store(self, key: int, entry: Entry, needs: int = 0) -> None:
        """Add an entry, unless the id has one. `needs`: content that it is reached through."""
        if key in self.by_id:
            return
        self.version += 1
        self.by_id[key] = entry
        copies = self.by_content.get(entry.content)
        if copies:
            copies.add(key)
            self.copied.add(entry.content)
        else:
            self.by_content[entry.content] = {key}
            self.orphans -= self._needed.get(entry.content, 0)
        if needs:
            self._needs[key] = needs
            self._needed[needs] += 1
            self.orphans += needs not in self.by_content

    def drop(self, key: int) -> Entry | None:
        """Remove an entry and return it; None if there was none."""
        entry = self.by_id.pop(key, None)
        if entry is None:
            return None
        self.version += 1
        needs = self._needs.pop(key, 0)
        if needs:
            self._needed[needs] -= 1
            if not self._needed[needs]:
                del self._needed[needs]  # histories of any length forget contents that are gone
            self.orphans -= needs not in self.by_content
        copies = self.by_content[entry.content]
        copies.discard(key)
        if len(copies) == 1:
            self.copied.discard(entry.content)
        elif not copies:
            del self.by_content[entry.content]
            self.orphans += self._needed.get(entry.content, 0)
        return entry

    def touch(self, contents: Iterable[int], now: int) -> None:
        """Note that a request has used these."""
        for content in contents:
            for key in self.by_content.get(content, ()):
                self.by_id[key].touched = now

    def clear(self) -> None:
        """Remove everything."""
        for content in (self.by_id, self.by_content, self.copied, self._needs, self._needed):
            content.clear()
        self.orphans = 0
        self.version += 1


class Tiers(NamedTuple):
    """Contents of one kind of memory: in the pool, and in the host tier below it."""

    pool: Contents
    host: Contents
