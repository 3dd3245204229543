"""Pieces that a decoding worker takes from prefilling ones, each slot from one of them (D1, Q4)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from kvproof.reference.disaggregation.workers import Cache, Layer, Slot, stage_of

Table: TypeAlias = Sequence[int]


class Kind(NamedTuple):
    """Layers of one kind, on both sides."""

    prefill: Layer
    decode: Layer
    layers: Sequence[int]


class Piece(NamedTuple):
    """Slots of one head that lie side by side on both sides."""

    source: int
    """The prefilling worker."""
    layer: int
    heads: tuple[int, int]
    """Its index of the head, and that of the decoding worker."""
    source_at: Slot
    target_at: Slot
    tokens: int


class Plan:
    """The moves from one engine's workers to another's. A worker is a rank of a stage."""

    def __init__(self, kinds: Mapping[str, Kind], stages: tuple[int, int]) -> None:
        """Raises ValueError for two models, and for stages without a layer."""
        self._kinds, self._stages = kinds, stages
        self._layers = sum(len(kind.layers) for kind in kinds.values())
        if max(stages) > self._layers:
            raise ValueError(f"{max(stages)} stages need as many layers, not {self._layers}")
        for kind in kinds.values():
            _same_model(kind.prefill, kind.decode)

    def pieces(
        self, worker: int, tables: Mapping[str, tuple[Table, Table]], start: int, end: int
    ) -> Iterator[Piece]:
        """Yield what a decoding worker takes for a prompt's tokens from `start` to `end`.

        `tables`: for each kind the prompt's blocks on the prefilling side, and on the decoding one.
        """
        for name, kind in self._kinds.items():
            stage, rank = divmod(worker, kind.decode.count)
            layers = [n for n in kind.layers if self._stage(n, self._stages[1]) == stage]
            runs = [*_runs(kind, rank, tables[name], kind.decode.needed(start, end))]
            for layer in layers:
                for first, at, tokens in runs:
                    yield from self._run(kind, rank, layer, (first, at, tokens))

    def _run(
        self, kind: Kind, rank: int, layer: int, run: tuple[int, tuple[Slot, Slot], int]
    ) -> Iterator[Piece]:
        first, at, tokens = run
        stage = self._stage(layer, self._stages[0]) * kind.prefill.count
        for index, head in enumerate(kind.decode.heads_of(rank)):
            source = _source(kind.prefill, rank, head, first)
            theirs = kind.prefill.heads_of(source).index(head)
            yield Piece(stage + source, layer, (theirs, index), *at, tokens)

    def _stage(self, layer: int, stages: int) -> int:
        return stage_of(layer, self._layers, stages)


def readers(pieces: Mapping[int, Sequence[Piece]], source: int) -> set[int]:
    """Return the decoding workers that take a piece from a prefilling one.

    `pieces`: those of each decoding worker. A worker without readers waits for the first of all.
    """
    found = {
        reader for reader, taken in pieces.items() if any(each.source == source for each in taken)
    }
    return found or {0}


def _same_model(prefill: Layer, decode: Layer) -> None:
    """Raises ValueError for unlike heads."""
    mine = {head for rank in range(decode.count) for head in decode.heads_of(rank)}
    theirs = {head for rank in range(prefill.count) for head in prefill.heads_of(rank)}
    if mine != theirs:
        raise ValueError(f"{len(theirs)} and {len(mine)} heads are of two models")


def _source(prefill: Layer, rank: int, head: int, position: int) -> int:
    """Return the prefilling rank that gives a slot; those with equal ones share the work."""
    having = [
        each
        for each in range(prefill.count)
        if head in prefill.heads_of(each) and prefill.holds(each, position)
    ]
    return having[rank % len(having)]


def _runs(
    kind: Kind, rank: int, tables: tuple[Table, Table], positions: range
) -> Iterator[tuple[int, tuple[Slot, Slot], int]]:
    """Yield first position, slots and length of what lies side by side on both sides."""
    first, count, at = -1, 0, ((0, 0), (0, 0))
    for position in (p for p in positions if kind.decode.holds(rank, p)):
        slots = kind.prefill.slot(tables[0], position), kind.decode.slot(tables[1], position)
        if count and _owner(kind, position) == _owner(kind, first) and _follows(at, count, slots):
            count += 1
            continue
        if count:
            yield first, at, count
        first, count, at = position, 1, slots
    if count:
        yield first, at, count


def _owner(kind: Kind, position: int) -> list[bool]:
    return [kind.prefill.holds(each, position) for each in range(kind.prefill.count)]


def _follows(first: tuple[Slot, Slot], count: int, slots: tuple[Slot, Slot]) -> bool:
    """Whether slots continue a run on both sides."""
    return all(
        at == (block, offset + count) for (block, offset), at in zip(first, slots, strict=True)
    )


def copy(piece: Piece, source: Cache, target: Cache) -> None:
    """Copy a piece of one layer."""
    (block, first), (to, at) = piece.source_at, piece.target_at
    theirs, mine = piece.heads
    taken = source[block, theirs, first : first + piece.tokens]
    target[to, mine, at : at + piece.tokens] = taken
