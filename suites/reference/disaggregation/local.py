"""The reference's plan for the suite's calls, on byte arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from kvproof.harness.contract.disaggregation import (
    Moved,
    Pair,
    Prompt,
    Refused,
    Traits,
    answered,
    packed,
)
from kvproof.harness.contract.disaggregation_sides import PARTS, ROWS, WORDS, Side, Tables
from kvproof.reference.disaggregation.lease import Arrivals, Leases
from kvproof.reference.disaggregation.plan import Kind, Piece, Plan, copy, readers
from kvproof.reference.disaggregation.workers import (
    LAYOUTS,
    Cache,
    Layer,
    StateWorkers,
    WindowWorkers,
    Workers,
    cache,
)
from kvproof.suites.framework.component_suite import Arguments

_LACKS = {"kernel": "the reference's plan counts in tokens, and has no kernel blocks"}
TRAITS = {
    "taken": Traits(_LACKS, [*LAYOUTS]),
    "sent": Traits(_LACKS, [*LAYOUTS], interleave=2, pushes=True),
}
"""Decoding workers take, or prefilling ones send; a turn of context ranks is a block or shorter."""


def ask(*calls: tuple[str, Arguments]) -> list[Any]:
    """Carry calls out on one pair of this process."""
    answers: list[Any] = answered({"calls": calls}, TRAITS, opened)["answers"]
    return answers


def opened(planner: str, prefill: Side, decode: Side) -> Pair | Refused:
    """Connect two sides."""
    pushes = TRAITS[planner or "taken"].pushes
    alone = True
    try:
        kinds = [_kinds(prefill), _kinds(decode)]
        alone = False
        return LocalPair((prefill, decode), *kinds, pushes=pushes)
    except ValueError as error:
        return Refused(str(error), alone)


def _kinds(side: Side) -> dict[str, Layer]:
    """Return the workers of a stage for each kind of layer that a side has."""
    heads = 0 if side.latent else side.heads
    sizes = side.ranks, heads, side.block_size, side.context, side.interleave
    made: dict[str, Callable[[], Layer]] = {
        "f": lambda: Workers(*sizes),
        "w": lambda: WindowWorkers(*sizes, window=side.window),
        "s": lambda: StateWorkers(side.ranks, PARTS),
    }
    has = {side.kind(layer) for layer in range(side.layers)}
    return {name: each() for name, each in made.items() if name in has}


class Turn(NamedTuple):
    """The workers that something happened to while one worker acted."""

    read: set[int]
    freed: set[int]
    written: set[int]
    arrived: set[int]


class LocalPair:
    """Two sides in numpy arrays."""

    def __init__(
        self,
        sides: tuple[Side, Side],
        sender: dict[str, Layer],
        receiver: dict[str, Layer],
        *,
        pushes: bool,
    ) -> None:
        prefill, decode = self._sides = sides
        self._pushes = pushes
        layers = range(decode.layers)
        kinds = {
            name: Kind(sender[name], each, [n for n in layers if decode.kind(n) == name])
            for name, each in receiver.items()
        }
        self._plan = Plan(kinds, (prefill.stages, decode.stages))
        self._sources, self._targets = _caches(prefill), _caches(decode)
        self._leases = [Leases() for _ in range(prefill.workers)]
        self._arrivals = [Arrivals() for _ in range(decode.workers)]

    def move(self, prompt: Prompt) -> Moved:
        """Compute a prompt, and let each worker of the acting side do its part."""
        prefill, decode = self._sides
        start = decode.start(prompt.cached, prompt.tokens)
        _write(prefill, self._sources, prompt, prompt.sender, prompt.tokens)
        _write(decode, self._targets, prompt, prompt.receiver, start)
        error, turns = "", list[Turn]()
        try:
            pieces = self._pieces(prompt, start)
            self._await(prompt.number, pieces)
            turns.extend(self._turn(each, prompt.number, pieces) for each in prompt.order)
        except ValueError as raised:
            error = str(raised)
        content = [packed([*target.values()]) for target in self._targets]
        seen = [[sorted(turn[each]) for turn in turns] for each in range(4)]
        return Moved(error, content, *seen)

    def _pieces(self, prompt: Prompt, start: int) -> dict[int, list[Piece]]:
        sender, receiver = prompt.sender, prompt.receiver
        tables = {
            "f": (sender.blocks, receiver.blocks),
            "w": (sender.window, receiver.window),
            "s": ([sender.row], [receiver.row]),
        }
        workers = range(self._sides[1].workers)
        return {each: [*self._plan.pieces(each, tables, start, prompt.tokens)] for each in workers}

    def _await(self, number: int, pieces: dict[int, list[Piece]]) -> None:
        """Set the parts that each side needs; a worker without one is linked to the first."""
        readers_ = [readers(pieces, source) for source in range(len(self._leases))]
        for lease, each in zip(self._leases, readers_, strict=True):
            lease.keep(number, each)
        for target, arrival in enumerate(self._arrivals):
            arrival.expect(number, [n for n, each in enumerate(readers_) if target in each] or [0])

    def _turn(self, actor: int, number: int, pieces: dict[int, list[Piece]]) -> Turn:
        """Let one worker send to all others, or take from all others."""
        turn = Turn(set(), set(), set(), set())
        targets = range(len(self._targets)) if self._pushes else [actor]
        for target in targets:
            for source in [actor] if self._pushes else range(len(self._sources)):
                taken = [each for each in pieces[target] if each.source == source]
                for piece in taken:
                    at = piece.layer
                    copy(piece, self._sources[source][at], self._targets[target][at])
                if taken:
                    turn.read.add(source)
                    turn.written.add(target)
                turn.freed.update({source} if self._leases[source].done(number, target) else ())
                turn.arrived.update({target} if self._arrivals[target].came(number, source) else ())
        return turn


def _caches(side: Side) -> list[dict[int, Cache]]:
    """Return the pages of each worker: layer -> [block, unit, offset, word]."""
    return [_pages(side, worker) for worker in range(side.workers)]


def _pages(side: Side, worker: int) -> dict[int, Cache]:
    layers = side.layers_of(worker)
    heads = len(side.of_rank(worker))
    pages = cache(side.layout, len(layers), side.blocks, heads, side.block_size, WORDS)
    rows = cache(side.layout, len(layers), ROWS, len(side.channels_of(worker)), 1, WORDS)
    both = {"f": pages, "w": pages, "s": rows}
    return {layer: both[side.kind(layer)][at] for at, layer in enumerate(layers)}


def _write(
    side: Side, caches: list[dict[int, Cache]], prompt: Prompt, tables: Tables, end: int
) -> None:
    whose = prompt.number, prompt.tokens
    for worker, layers in enumerate(caches):
        for layer, pages in layers.items():
            filled = side.filled(worker, layer, tables, whose, end)
            pages[filled.blocks, :, filled.offsets] = filled.words.swapaxes(0, 1)
