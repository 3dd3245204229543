"""Routed experts of each token: kept per unit next to the index, returned exactly (R1-R3).

The row of a token is [layers, ranks] expert ids. A *unit* is the grain of the index. Rows belong to
an owner that the caller names (an index node) and to the number of the unit in it; they are no part
of identity. Rows that were never recorded are reported as missing.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from kvproof.reference.cache.request_state import RequestState, StepEntry
from kvproof.reference.core.block_pool import Ids
from kvproof.reference.core.identity import TOKEN_BYTES
from kvproof.reference.prefix.trie import InsertedRange, Node

ExpertRows: TypeAlias = npt.NDArray[np.uint8] | npt.NDArray[np.uint16]
"""[tokens, layers, ranks]"""

Place: TypeAlias = tuple[Hashable, int]
"""(owner, how many of its units from the first on)."""


class ExpertFormat(NamedTuple):
    """Shape of one row, and the tokens of a unit."""

    experts: int
    layers: int
    ranks: int
    unit: int

    @property
    def dtype(self) -> npt.DTypeLike:
        """The smallest of the types that hold an expert id."""
        return np.uint8 if self.experts <= 256 else np.uint16

    def rows(self, rows: npt.ArrayLike) -> ExpertRows:
        """Check rows from outside. Raises ValueError with the shape or the id that is wrong."""
        given = np.asarray(rows)
        if given.ndim != 3 or given.shape[1:] != (self.layers, self.ranks):
            raise ValueError(f"rows of shape {given.shape}, not [n, {self.layers}, {self.ranks}]")
        if given.dtype.kind not in "iu":
            raise ValueError(f"expert ids of type {given.dtype} are not whole numbers")
        if given.size and not 0 <= given.min() <= given.max() < self.experts:
            raise ValueError(
                f"expert ids {given.min()} .. {given.max()} are not in 0 .. {self.experts - 1}"
            )
        return given.astype(self.dtype, copy=False)

    def empty(self, tokens: int) -> ExpertRows:
        """Return zeroed rows."""
        return np.zeros((tokens, self.layers, self.ranks), self.dtype)


class _RowStore:
    """Rows of one owner; `known[i]` is 1 if unit i has them."""

    __slots__ = ("known", "rows")

    def __init__(self, rows: ExpertRows, known: bytearray) -> None:
        self.rows = rows
        self.known = known


class ExpertStore:
    """Rows by owner and unit. Every operation copies whole runs of units."""

    def __init__(self, form: ExpertFormat) -> None:
        self.form = form
        self._stores: dict[Hashable, _RowStore] = {}

    def fill(self, owner: Hashable, first: int, rows: ExpertRows) -> int:
        """Set rows of whole units that have none (R3); returns how many. Raises ValueError."""
        unit = self.form.unit
        if len(rows) % unit or rows.dtype != self.form.dtype:
            raise ValueError(f"{len(rows)} rows of {rows.dtype} are not whole units of {unit} rows")
        count = len(rows) // unit
        store = self._store(owner, first + count)
        target = store.rows[first * unit : (first + count) * unit]
        here = np.frombuffer(store.known[first : first + count], np.bool_)
        if here.any():
            _by_unit(target, unit)[~here] = _by_unit(rows, unit)[~here]
        else:
            target[:] = rows
        filled = store.known.count(0, first, first + count)
        store.known[first : first + count] = b"\1" * count
        return filled

    def _store(self, owner: Hashable, units: int) -> _RowStore:
        """Return the store of an owner with room for so many units; grows by doubling."""
        store = self._stores.get(owner)
        if store is None:
            store = self._stores[owner] = _RowStore(
                self.form.empty(units * self.form.unit), bytearray()
            )
        store.known.extend(bytes(max(0, units - len(store.known))))
        if units * self.form.unit > len(store.rows):
            larger = self.form.empty(2 * units * self.form.unit)
            larger[: len(store.rows)] = store.rows
            store.rows = larger
        return store

    def first_missing(self, path: Iterable[Place]) -> int:
        """Return how many leading units of a path have rows: where a hit has to end (R3)."""
        before = 0
        for owner, count in path:
            store = self._stores.get(owner)
            known = store.known if store else b""
            gap = known.find(0, 0, count)
            complete = min(len(known), count) if gap < 0 else gap
            before += complete
            if complete < count:
                break
        return before

    def read(self, path: Iterable[Place], into: ExpertRows) -> npt.NDArray[np.bool_]:
        """Copy the rows of a path into `into` (whole units); returns which tokens are known."""
        unit, at = self.form.unit, 0
        known = np.zeros(len(into), np.bool_)
        for owner, count in path:
            store = self._stores.get(owner)
            have = min(count, len(store.known), (len(into) - at) // unit) if store else 0
            if store and have > 0:
                stop = at + have * unit
                marks = np.frombuffer(store.known, np.bool_, have).repeat(unit)
                into[at:stop][marks] = store.rows[: have * unit][marks]
                known[at:stop] = marks
            at += count * unit
        return known

    def move(self, owner: Hashable, front: Hashable, count: int) -> None:
        """Hand the first `count` units of an owner to `front`, which has none: a node is split."""
        store = self._stores.pop(owner, None)
        if store is None:
            return
        cut = count * self.form.unit
        self._put(front, store.rows[:cut], store.known[:count])
        self._put(owner, store.rows[cut:], store.known[count:])

    def keep(self, owner: Hashable, count: int) -> None:
        """Forget all but the first `count` units of an owner: its end is evicted."""
        store = self._stores.pop(owner, None)
        if store is not None:
            self._put(owner, store.rows[: count * self.form.unit], store.known[:count])

    def _put(self, owner: Hashable, rows: ExpertRows, known: bytearray) -> None:
        """Keep own copies, no longer than needed: the index bounds their memory (T4)."""
        if known.count(1):
            self._stores[owner] = _RowStore(rows[: len(known) * self.form.unit].copy(), known)

    def clear(self) -> None:
        """Forget everything: a new epoch (H6)."""
        self._stores.clear()

    @property
    def num_units(self) -> int:
        """Units that have rows."""
        return sum(store.known.count(1) for store in self._stores.values())


def _by_unit(rows: ExpertRows, unit: int) -> ExpertRows:
    return rows.reshape(len(rows) // unit, unit, *rows.shape[1:])


class Recorded(NamedTuple):
    """Rows of tokens [0, len(rows)) of a request; zero where `missing` (R2)."""

    rows: ExpertRows
    missing: tuple[tuple[int, int], ...]
    """Ranges [start, stop) of tokens without recorded rows."""


class ExpertHistory:
    """Rows of one request from token `hit` on, where it began to compute."""

    def __init__(self, form: ExpertFormat, hit: int) -> None:
        self.form = form
        self.hit = hit
        self.length = hit
        """Tokens computed, with or without rows."""
        self._rows = form.empty(0)
        self._known = np.zeros(0, np.bool_)

    def append(self, start: int, count: int, rows: npt.ArrayLike | None) -> None:
        """Record a step that computed tokens [start, start + count); None: without rows.

        Raises ValueError for a step that does not follow the last one, and for a number of rows
        other than `count`: rows are never shifted.
        """
        if start != self.length:
            raise ValueError(f"rows from token {start} on do not follow token {self.length}")
        stop = start + count - self.hit
        self._reserve(stop)
        if rows is not None:
            given = self.form.rows(rows)
            if len(given) != count:
                raise ValueError(f"{len(given)} rows for {count} tokens")
            self._rows[start - self.hit : stop] = given
        self._known[start - self.hit : stop] = rows is not None
        self.length = start + count

    def _reserve(self, tokens: int) -> None:
        if tokens > len(self._rows):
            extra = max(tokens, 2 * len(self._rows)) - len(self._rows)
            self._rows = np.concatenate([self._rows, self.form.empty(extra)])
            self._known = np.concatenate([self._known, np.zeros(extra, np.bool_)])

    def truncate(self, length: int) -> None:
        """Roll back to `length` tokens (X5); raises ValueError for a length not computed here."""
        if not self.hit <= length <= self.length:
            raise ValueError(f"length {length} is not in {self.hit} .. {self.length}")
        self.length = length

    def index(self, store: ExpertStore, owner: Hashable, first: int, start: int, stop: int) -> int:
        """Fill fully recorded units of `owner` from [start, stop) (R3); returns how many."""
        unit = self.form.unit
        known: npt.NDArray[np.bool_] = np.all(
            self._known[start - self.hit : stop - self.hit].reshape(-1, unit), axis=1
        )
        rows = self._rows[start - self.hit : stop - self.hit]
        filled = 0
        for begin, end in _ranges(known):
            filled += store.fill(owner, first + begin, rows[begin * unit : end * unit])
        return filled

    def recorded(self, total: int, store: ExpertStore, path: Iterable[Place]) -> Recorded:
        """Return rows of all of `total` tokens but the last (R2); `path` covers the hit."""
        size = max(total - 1, 0)
        rows = self.form.empty(max(size, self.hit))
        missing = np.ones(len(rows), np.bool_)
        missing[: self.hit] = ~store.read(path, rows[: self.hit])
        own = max(min(self.length, size) - self.hit, 0)
        rows[self.hit : self.hit + own] = self._rows[:own]
        missing[self.hit : self.hit + own] = ~self._known[:own]
        rows[missing] = 0
        return Recorded(rows[:size], tuple(_ranges(missing[:size])))


def _ranges(marks: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(marks, prepend=False, append=False)).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


class ExpertIndex:
    """Keeps nodes and `ExpertStore` agreed, and one history for each request."""

    def __init__(self, form: ExpertFormat) -> None:
        self.store = ExpertStore(form)
        self._unit = form.unit
        self.histories: dict[RequestState, ExpertHistory] = {}
        """Running request -> its rows since its hit."""

    def clamp(self, node: Node, tokens: int) -> int:
        """Return how many of the first `tokens` tokens on a path have rows, in whole units (R3)."""
        return min(tokens, self.store.first_missing(_path(node)) * self._unit)

    def start(self, request: RequestState) -> None:
        """Begin a request after its hit."""
        self.histories[request] = ExpertHistory(self.store.form, request.computed)

    def check(self, scheduled: StepEntry, rows: npt.ArrayLike) -> None:
        """Raise ValueError unless there is one well-formed row for each token of a step."""
        given = self.store.form.rows(rows)
        count = scheduled.stop - self.histories[scheduled.request].length
        if len(given) != count:
            raise ValueError(f"{len(given)} expert rows for the {count} tokens of a step")

    def record(self, scheduled: StepEntry, stop: int, rows: Mapping[str, npt.ArrayLike]) -> None:
        """Keep the rows of a step, one for each token that it computed, up to `stop` (R1, X5)."""
        history = self.histories[scheduled.request]
        count = scheduled.stop - history.length
        history.append(history.length, count, rows.get(scheduled.request.id))
        history.truncate(stop)

    def index(self, request: RequestState, pieces: list[InsertedRange]) -> None:
        """Fill the units of `pieces` that have no rows yet (R3)."""
        history = self.histories[request]
        whole = -(-history.hit // self._unit)
        for piece in pieces:
            node, last = piece.node, piece.last
            first = max(piece.first, whole)  # a unit that was hit in part has no rows there (T6)
            if first < last:
                start, stop = first * self._unit, last * self._unit
                history.index(self.store, node, first - node.start, start, stop)

    def recorded(self, request: RequestState) -> Recorded:
        """Return the rows of every token but the last, or which are missing (R2)."""
        total = len(request.tokens) // TOKEN_BYTES
        return self.histories[request].recorded(total, self.store, _path(request.node))

    def release(self, request: RequestState) -> None:
        """Forget the history of a request."""
        self.histories.pop(request, None)

    def split(self, front: Node, back: Node) -> None:
        """Divide the rows of `back` (see `Attached`)."""
        self.store.move(back, front, front.units)

    def trim(self, node: Node, units: int) -> Ids:
        """Forget the rows of the last units; there are no ids to free."""
        self.store.keep(node, node.units - units)
        return array("i")


def _path(node: Node) -> list[Place]:
    places: list[Place] = [(step, step.units) for step in node.path()]
    return places[::-1]
