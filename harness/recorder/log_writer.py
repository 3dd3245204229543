"""The log of one cache: admissions, allocated blocks, releases, resets.

A decoding step is written when its blocks change; one that fills a block is written before the next
request can hit it. Its other effects are invisible to other requests. An error of the recorder ends
the recording, is logged once, and never reaches the engine.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from kvproof.harness.recorder.codec import Veil, pack
from kvproof.harness.recorder.entry import Arrival, Entry
from kvproof.harness.recorder.ring import RingWriter
from kvproof.harness.recorder.rotation import Segments
from kvproof.harness.recorder.tables import Tables, edit

FORMAT, GROUPED, STEPPED = 1, 2, 3
"""Raised when a line changes meaning: caches of several groups have lines of their own, and so have
steps of several requests."""

log = logging.getLogger("kvproof.record")

_encode = json.JSONEncoder(separators=(",", ":")).encode
_stems = count(1)
_time, _monotonic = time.time, time.monotonic
"""The real clock: an engine in a test may have another one."""


def _seen() -> None:
    """All that others may hit is written: each step at once."""


class Settings(NamedTuple):
    """The user's settings."""

    directory: Path
    limit: int = 1 << 30
    """Bytes that the files of one cache may take."""
    key: bytes = b""
    """Tokens, salts, adapters and images are hashed under it; empty: written as they are."""
    watched: bool = False
    """Lines go to a watcher, through `limit` bytes of shared memory, and not into files."""


Held = tuple[Entry, Any]
"""A request with the engine's own object of it."""

Tokens = Callable[[Any, int, int], Sequence[int]]
"""`tokens(request, start, stop)` asks an engine for tokens of its request."""


class Cache(NamedTuple):
    """The cache that is recorded."""

    engine: str
    version: str
    num_blocks: int
    block_size: int
    prefix_caching: bool = True
    maximal: bool = True
    """Whether its hits are as long as its cache allows, with the settings that it runs with."""
    loop: dict[str, Any] = {}  # noqa: RUF012 - a default of a tuple that is never changed
    """Settings of the engine's loop as `EngineConfig` has them; empty: they are not known."""
    groups: tuple[dict[str, Any], ...] = ()
    """Fields of each `contract.target.Group`; empty: one group of full attention."""
    overlaps: bool = False
    """Whether steps overlap: windows then give blocks back later."""
    unjudged: tuple[str, ...] = ()
    """Further limits of the judge in this cache, one line each."""
    stepped: bool = False
    """Whether its steps are written at their end, all requests in a line."""


class LogWriter:
    """Writes one recording."""

    def __init__(self, cache: Cache, settings: Settings, tokens: Tokens) -> None:
        """Raises OSError if the folder cannot be written."""
        self._cache, self._tokens, self._size = cache, tokens, cache.block_size
        self._veil = Veil(settings.key) if settings.key else None
        os.register_at_fork(after_in_child=self._forked)
        begun = time.strftime("%Y%m%d-%H%M%S")  # containers give the same process id again
        stem = f"{cache.engine}-{begun}-{os.getpid()}-{next(_stems)}"
        lines = RingWriter if settings.watched else Segments
        self._segments: RingWriter | Segments = lines(settings.directory, stem, settings.limit)
        self._numbers = count(1)
        self._live: dict[str, Held] = {}
        self._due: dict[str, None] = {}
        """Requests with a filled block that is not written yet."""
        self.quiet: dict[str, int] = {}
        """Request -> a step that ends before has no effect on others. Engines look here first."""
        self.look: Callable[[], None] = _seen
        """Writes what others may hit by now, where steps are written at their end."""
        self._rows: list[int] = []
        """Requests of a step: number, stop, counts of its tokens and blocks, then these."""
        self._start = _monotonic()
        self.active = True
        self._capped = False
        self._segments.begin(self._opening())

    def __contains__(self, name: str) -> bool:
        return name in self._live

    @property
    def by_steps(self) -> bool:
        """Whether steps are written at their end."""
        return self._cache.stepped

    @property
    def live(self) -> Mapping[str, Held]:
        """The requests that hold blocks, by name."""
        return self._live

    @property
    def grouped(self) -> bool:
        """Whether requests have a table for each of several groups."""
        return bool(self._cache.groups)

    def guard(self, react: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Call a hook; any error ends the recording and nothing else."""
        if not self.active:
            return None
        try:
            return react(self, *arguments, **named)
        except BaseException as error:  # noqa: BLE001 - the engine must not notice
            self.fail(error)
            return None

    def _forked(self) -> None:
        """A copy of the engine's process is not the engine."""
        self.active = False

    def fail(self, error: BaseException) -> None:
        """End the recording after its own error; raises a signal's exception for the engine."""
        self.stop(f"{type(error).__name__}: {error}")
        if not isinstance(error, Exception):
            raise error

    def stop(self, reason: str) -> None:
        """End the recording, with the reason in it and in the log."""
        self.active = False
        log.warning("kvproof record: recording stopped: %s", reason)
        try:
            self._segments.write(self._line(op="stopped", reason=reason))
            self._segments.close()
        except OSError as error:
            log.warning("kvproof record: the reason could not be written: %s", error)

    # --- events ---

    def admit(
        self, request: Any, arrival: Arrival, *, known: int, hit: int, stop: int,
        blocks: Sequence[int], loaded: int = 0,
    ) -> None:  # fmt: skip
        """A request of `known` tokens reuses `hit`, computes up to `stop`, and holds `blocks`.

        The first `loaded` positions after the hit are not computed but loaded from elsewhere.
        """
        self.turn()
        self._tell()
        entry = Entry(next(self._numbers), arrival, self._veil.chain() if self._veil else None)
        self._live[arrival.name] = entry, request
        self._computed(entry, stop)
        entry.seen = stop
        more: dict[str, Any] = {"loaded": loaded} if loaded else {}
        self._capped |= loaded > 0  # others find it when it has come
        tokens = pack(self._following(entry, request, known))
        more |= self._shown(entry, blocks)
        self._write(
            tokens,
            pack(entry.table) if not entry.tables else "",
            op="admit",
            n=entry.number,
            hit=hit,
            stop=stop,
            **self._fields(arrival),
            **more,
        )

    def _shown(self, entry: Entry, blocks: Any) -> dict[str, Any]:
        """Set the blocks of an admission: of one group, or a table for each."""
        if not self._cache.groups:
            entry.table = list(blocks)
            return {}
        entry.tables = tuple(tuple(table) for table in blocks)
        return {"groups": [pack(edit((), table)) for table in entry.tables]}

    def step(self, name: str, known: int, stop: int, fresh: Sequence[int] = ()) -> bool:
        """A request of `known` tokens computes up to `stop` and got `fresh` blocks.

        Returns whether it was admitted. Called for every token, and mostly writes nothing.
        """
        found = self._live.get(name)
        if found is None:
            return False
        entry, request = found
        stop = max(entry.seen, min(stop, known))
        entry.seen = stop
        if fresh or stop > len(entry.table) * self._size:  # it has no block for its last tokens
            self.turn()
            self._extend(entry, request, stop, known, fresh)
        elif stop >= entry.next:
            self._due[name] = None
            self._passed(entry, stop)
        return True

    def grown(self, held: Held, known: int, start: int, stop: int, fresh: Sequence[int]) -> None:
        """As `step`, into the line of the step from `start` on, which `stepped` writes.

        Blocks that came too late are shown.
        """
        entry, request = held
        stop = max(entry.seen, stop if stop < known else known)
        if start > len(entry.table) * self._size:
            self._row(entry, request, max(entry.seen, min(start, known)), known, ())
        self._row(entry, request, stop, known, fresh)

    def _row(self, entry: Entry, request: Any, stop: int, known: int, fresh: Sequence[int]) -> None:
        tokens = self._following(entry, request, known) if known > entry.logged else ()
        entry.stop = entry.seen = stop
        entry.table += fresh
        self._rows += (entry.number, stop, len(tokens), len(fresh), *tokens, *fresh)

    def stepped(self) -> None:
        """Write the requests of a step."""
        if self._rows:
            rows, self._rows = self._rows, []
            self._segments.write(
                f'{{"op":"steps","t":{self._now()},"rows":"{pack(rows)}"}}\n'.encode()
            )

    def change(self, name: str, known: int, span: tuple[int, int], tables: Tables) -> bool:
        """As `step` where there are several groups, with all tables that the step sees.

        `span`: first token of the step, and the end. Earlier steps saw the tables before.
        """
        found = self._live.get(name)
        if found is None:
            return False
        entry, request = found
        start, stop = span
        entry.seen = stop = max(entry.seen, min(stop, known))
        if tables == entry.tables:
            self._due[name] = None
            self._passed(entry, stop)
            return True
        self.turn()
        changed = zip(entry.tables, tables, strict=True)
        groups = [pack(edit(old, new)) if old != new else "" for old, new in changed]
        entry.tables = tables
        tokens, at = self._following(entry, request, known), max(entry.stop, min(start, stop))
        self._computed(entry, stop)
        self._write(pack(tokens), op="extend", n=entry.number, stop=stop, at=at, groups=groups)
        return True

    def filled(self, name: str, known: int, stop: int) -> None:
        """Positions up to `stop` are computed, by steps before this call."""
        entry, _ = self._live[name]
        entry.seen = max(entry.seen, min(stop, known))
        if entry.seen >= entry.next:
            self._due[name] = None
            self._passed(entry, entry.seen)

    def returned(self, name: str, tables: Tables) -> None:
        """A request gave blocks back between its steps."""
        entry, _ = self._live[name]
        if tables != entry.tables:
            self.change(name, entry.logged, (entry.seen, entry.seen), tables)

    def _tell(self) -> None:
        """Write which blocks are filled, before others may hit them."""
        self.look()
        for name in self._due:
            entry, request = self._live[name]
            if entry.seen > entry.stop:
                self._extend(entry, request, entry.seen, max(entry.seen, entry.logged), ())
        self._due.clear()

    def _computed(self, entry: Entry, stop: int) -> None:
        entry.stop = stop
        self._passed(entry, stop)

    def _passed(self, entry: Entry, stop: int) -> None:
        entry.next = self.quiet[entry.arrival.name] = (stop // self._size + 1) * self._size

    def _extend(
        self, entry: Entry, request: Any, stop: int, known: int, fresh: Sequence[int]
    ) -> None:
        tokens = self._following(entry, request, known)
        self._computed(entry, stop)
        entry.table += fresh
        more = f',"tokens":"{pack(tokens)}"' if tokens else ""
        if fresh:
            more += f',"blocks":"{pack(fresh)}"'
        self._segments.write(  # as `_line`, for a third of its price: most lines are this one
            f'{{"op":"extend","n":{entry.number},"stop":{stop},"t":{self._now()}{more}}}\n'.encode()
        )

    def _following(self, entry: Entry, request: Any, known: int) -> Sequence[int]:
        if known <= entry.logged:
            return ()
        tokens = self._tokens(request, entry.logged, known)
        entry.logged = known
        if entry.chain is not None:
            tokens = entry.chain.tokens(tokens)
            entry.written += tokens
        return tokens

    def table(self, name: str, blocks: Sequence[int]) -> None:
        """The first blocks of a request are these now."""
        entry, _ = self._live[name]
        if entry.table[: len(blocks)] != blocks:
            self.turn()
            self._tell()
            entry.table[: len(blocks)] = blocks
            self._write("", pack(blocks), op="table", n=entry.number)

    def computed(self, name: str, stop: int) -> None:
        """A request that is about to leave has computed up to `stop`."""
        entry, _ = self._live[name]
        entry.seen = max(entry.seen, stop)

    def release(self, name: str, verb: str, blocks: Any, *, fenced: bool = False) -> None:
        """`verb` (finish, cancel or preempt) released `blocks`; nothing if it held none.

        `fenced`: they are free only after a running step or transfer. `blocks`: as in `admit`.
        """
        if name not in self._live:
            return
        self.turn()
        entry, request = self._live.pop(name)
        self._due.pop(name, None)
        if entry.seen > entry.stop:
            self._extend(entry, request, entry.seen, max(entry.seen, entry.logged), ())
        self.quiet.pop(name, None)
        more: dict[str, Any] = {"fenced": True} if fenced else {}
        if entry.tables and (blocks := tuple(map(tuple, blocks))) != entry.tables:
            both = zip(entry.tables, blocks, strict=True)
            more["groups"] = [pack(edit(old, new)) for old, new in both]
        changed = "" if entry.tables or entry.table == blocks else pack(blocks)
        self._write("", changed, op=verb, n=entry.number, **more)

    def cap(self) -> None:
        """Hits are cut short for a reason that is not recorded: none is lost from now on."""
        if not self._capped:
            self._capped = True
            self.turn()
            self._write(op="cap")

    def reset(self, *, done: bool) -> None:
        """Everything cached was to be forgotten."""
        self.turn()
        self._tell()
        self._write(op="reset", done=done)

    def evict(self, blocks: Sequence[int]) -> None:
        """These blocks lost their identity on request."""
        self.turn()
        self._tell()
        self._write("", pack(blocks), op="evict")

    # --- how it is written ---

    def turn(self) -> None:
        """Begin a new file where the last one is full."""
        if self._segments.full:
            self._segments.begin(self._opening())

    def _opening(self) -> bytes:
        live = (self._carried(entry, request) for entry, request in self._live.values())
        return b"".join((self._header(), *live))

    def _write(self, tokens: str = "", blocks: str = "", **fields: Any) -> None:
        self._segments.write(self._line(tokens, blocks, **fields))

    def _carried(self, entry: Entry, request: Any) -> bytes:
        """State of a request whose admission may be in a deleted file."""
        more = {"groups": [pack(edit((), table)) for table in entry.tables]} if entry.tables else {}
        return self._line(
            pack(entry.written or self._tokens(request, 0, entry.logged)),
            "" if entry.tables else pack(entry.table),
            op="carry",
            n=entry.number,
            stop=entry.stop,
            **self._fields(entry.arrival),
            **more,
        )

    def _now(self) -> int:
        """Return milliseconds since the recording began."""
        return round((_monotonic() - self._start) * 1000)

    def _line(self, tokens: str = "", blocks: str = "", **fields: Any) -> bytes:
        """Packed numbers need no escapes, which to look for would take as long as all the rest."""
        fields["t"] = self._now()
        text = _encode(fields)[:-1]
        if tokens:
            text += f',"tokens":"{tokens}"'
        if blocks:
            text += f',"blocks":"{blocks}"'
        return f"{text}}}\n".encode()

    def _fields(self, arrival: Arrival) -> dict[str, Any]:
        """Return the fields of an arrival that differ from their usual values."""
        hide = self._veil.text if self._veil else str
        fields: dict[str, Any] = {"name": arrival.name}
        for field in ("adapter", "adapter_version", "salt"):
            if (value := getattr(arrival, field)) is not None:
                fields[field] = hide(value)
        if arrival.spans:
            fields["spans"] = [
                [kind, at, size, hide(what)] for kind, at, size, what in arrival.spans
            ]
        fields |= {field: False for field in ("read", "store") if not getattr(arrival, field)}
        return fields | ({"resumed": True} if arrival.resumed else {})

    def _header(self) -> bytes:
        return self._line(
            kvproof="recording",
            format=STEPPED if self._cache.stepped else GROUPED if self._cache.groups else FORMAT,
            segment=self._segments.number + 1,
            process=os.getpid(),
            unix=round(_time(), 3),
            hashed=self._veil is not None,
            capped=self._capped,
            **self._cache._asdict(),
        )
