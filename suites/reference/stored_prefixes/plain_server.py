"""A plain server of chunks of prefixes, to run the suite `prefixes` without an engine.

A target of its own, `kvproof.suites.reference.stored_prefixes.plain_server:make_target`: right,
small and slow, for full attention alone. Faults are planted into it, as into the reference.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Any, TypeAlias

from kvproof.harness.adapters.refusals import WithoutBlocks
from kvproof.harness.contract.profile import Profile
from kvproof.harness.contract.target import Target, TargetConfig
from kvproof.suites.reference.stored_prefixes.model import BLOCK, CHUNK, EACH

Key: TypeAlias = bytes
Ids: TypeAlias = list[list[int]]


class Plain:
    """One server and the pages of its engines. Verbs and answers: see `prefixes`."""

    def __init__(self) -> None:
        self._chunks: OrderedDict[Key, list[bytes]] = OrderedDict()
        """The least recently used first; for each, the blocks of all tables in order."""
        self._locks: Counter[Key] = Counter()
        self._held: dict[str, Counter[Key]] = {}
        """Request -> its locks."""
        self._layouts: dict[int, list[object]] = {}
        """Engine -> the meaning of a chunk's bytes."""
        self._pages: dict[int, list[list[bytes]]] = {}

    def traits(self) -> dict[str, object]:
        """Windows are not supported here."""
        return {"windows": False}

    def engine(self, *, instance: int, tables: list[dict[str, Any]]) -> dict[str, object]:
        """Register an engine: all its tables share the objects of a chunk."""
        self._layouts[instance] = [(each["block"], each["row"], each["type"]) for each in tables]
        self._pages[instance] = [
            [bytes(each["block"] * each["row"])] * each["blocks"] for each in tables
        ]
        return {"parts": [list(range(len(tables)))], "windows": [-1]}

    def write(self, *, instance: int, table: int, blocks: dict[str, str]) -> None:
        """Let the engine compute blocks."""
        for block, data in blocks.items():
            self._pages[instance][table][int(block)] = bytes.fromhex(data)

    def fill(self, *, instance: int, byte: int) -> None:
        for pages in self._pages[instance]:
            pages[:] = [bytes([byte]) * len(page) for page in pages]

    def read(self, *, instance: int, table: int, blocks: list[int]) -> list[str]:
        return [self._pages[instance][table][block].hex() for block in blocks]

    # --- stores and look-ups ---

    def store(self, *, instance: int, ids: Ids, **named: Any) -> list[object]:
        keys = self._keys(instance=instance, **named)
        if _too_few(ids, keys):
            return [False, []]
        copied: dict[Key, list[bytes]] = {}
        try:
            for at, key in enumerate(keys):
                if key not in self._chunks:
                    copied[key] = self._copied(instance, ids, at)
        except IndexError:
            return [False, []]
        self._chunks.update(copied)
        return [True, [key in copied for key in keys]]

    def _copied(self, instance: int, ids: Ids, at: int) -> list[bytes]:
        """Return the blocks of a chunk. Raises IndexError."""
        places = range(at * EACH, (at + 1) * EACH)
        tables = zip(self._pages[instance], ids, strict=True)
        return [pages[own[place]] for pages, own in tables for place in places]

    def ask(self, *, request: str, **named: Any) -> int:
        """Lock the leading chunks that are there; returns their number."""
        keys = self._keys(**named)
        found = next((at for at, key in enumerate(keys) if key not in self._chunks), len(keys))
        self._locks.update(keys[:found])
        self._held.setdefault(request, Counter()).update(keys[:found])
        return found

    def take(self, *, instance: int, request: str, ids: Ids, skip: int = 0, **named: Any) -> bool:
        """Copy chunks that the request has locked into blocks, except `skip` tokens."""
        keys = self._keys(instance=instance, **named)
        if _too_few(ids, keys) or not self._has(request, keys):
            return False
        for at, key in enumerate(keys):
            self._put(instance, ids, at, self._chunks[key], skip // BLOCK)
        self._unlock(request, keys)
        return True

    def _has(self, request: str, keys: Sequence[Key]) -> bool:
        held = self._held.get(request, Counter())
        return all(held[key] and key in self._chunks for key in keys)

    def _put(self, instance: int, ids: Ids, at: int, blocks: list[bytes], skip: int) -> None:
        for table, own in enumerate(ids):
            for place in range(max(skip, at * EACH), (at + 1) * EACH):
                data = blocks[table * EACH + place - at * EACH]
                self._pages[instance][table][own[place]] = data

    def free(self, *, request: str, **named: Any) -> None:
        """Release locks."""
        self._unlock(request, self._keys(**named))

    def end(self, *, request: str) -> None:
        self._unlock(request, [*self._held.get(request, Counter()).elements()])
        self._held.pop(request, None)

    def _unlock(self, request: str, keys: Sequence[Key]) -> None:
        """Release these locks of the request; they were used now."""
        mine = Counter(keys) & self._held.get(request, Counter())
        self._held.get(request, Counter()).subtract(mine)
        self._locks -= mine
        for key in mine:
            self._chunks.move_to_end(key)

    # --- deletions and queries ---

    def delete(self, *, part: int, last: int = 0, **named: Any) -> list[int]:
        """Delete the last chunks except locked ones; returns the number of both."""
        del part
        keys = [key for key in self._keys(**named)[-last:] if key in self._chunks]
        gone = [key for key in keys if not self._locks[key]]
        for key in gone:
            del self._chunks[key]
        return [len(gone), len(keys) - len(gone)]

    def evict(self, *, share: float) -> int:
        """Delete a share of the chunks in LRU order, except locked ones."""
        idle = [key for key in self._chunks if not self._locks[key]]
        gone = idle[: math.ceil(share * len(self._chunks))]
        for key in gone:
            del self._chunks[key]
        return len(gone)

    def there(self, *, part: int, **named: Any) -> list[bool]:
        """Return for each chunk whether it is there."""
        del part
        return [key in self._chunks for key in self._keys(**named)]

    def rest(self, *, locked: int, patience_s: float) -> dict[str, int]:
        """Return the status; no background work exists."""
        del locked, patience_s
        return {"staging_object_count": 0, "read_locked_count": len(+self._locks)}

    def _keys(
        self,
        *,
        instance: int,
        tokens: Sequence[int],
        start: int,
        end: int,
        salt: str,
        request: str = "",
    ) -> list[Key]:
        """Name chunks by all tokens before their end, tenant and meaning of the bytes (H6)."""
        del request
        named = (self._layouts[instance], salt)
        ends = range(start + CHUNK, end + 1, CHUNK)
        return [hashlib.sha256(repr((named, tokens[:stop])).encode()).digest() for stop in ends]


def _too_few(ids: Ids, keys: Sequence[Key]) -> bool:
    return any(len(own) < len(keys) * EACH for own in ids)


_RUNNING: list[Plain] = []


def answer(job: dict[str, Any]) -> dict[str, Any]:
    """Carry calls out; `open` begins with an empty server."""
    answers: list[Any] = []
    for verb, keywords in job["calls"]:
        if verb == "open":
            _RUNNING[:] = [Plain()]
        answers.append(None if verb == "open" else getattr(_RUNNING[0], verb)(**keywords))
    return {"answers": answers}


PROFILE = Profile(
    engine="plain",
    version="0",
    block_sizes=(BLOCK,),
    blocks=False,
    component_suites={"prefixes": f"{__name__}:answer"},
    unsupported={"blocks": "it keeps chunks of prefixes, and hands out no blocks"},
)


def make_target(config: TargetConfig) -> Target:
    """A target whose server is empty; pool sizes do not matter."""
    del config
    return WithoutBlocks(PROFILE)
