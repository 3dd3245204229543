"""The reference's plan for the suite's calls, on byte arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvproof.harness.contract.disaggregation import (
    WORDS,
    Moved,
    Pair,
    Prompt,
    Refused,
    Side,
    answered,
    packed,
    words,
)
from kvproof.reference.disaggregation.lease import Leases
from kvproof.reference.disaggregation.plan import Plan, copy
from kvproof.reference.disaggregation.workers import LAYOUTS, Cache, Workers, cache
from kvproof.suites.framework.component_suite import Arguments

TRAITS: dict[str, Any] = {
    "lacks": {"kernel": "the reference's plan counts in tokens, and has no kernel blocks"},
    "layouts": [*LAYOUTS],
}


def ask(*calls: tuple[str, Arguments]) -> list[Any]:
    """Carry calls out on one pair of this process."""
    answers: list[Any] = answered({"calls": calls}, TRAITS, opened)["answers"]
    return answers


def opened(prefill: Side, decode: Side) -> Pair | Refused:
    """Connect two sides."""
    alone = True
    try:
        sides = _workers(prefill), _workers(decode)
        alone = False
        return LocalPair((prefill, decode), *sides)
    except ValueError as error:
        return Refused(str(error), alone)


def _workers(side: Side) -> Workers:
    heads = 0 if side.latent else side.heads
    return Workers(side.ranks, heads, side.block_size, side.context)


class LocalPair:
    """Two sides in numpy arrays."""

    def __init__(self, sides: tuple[Side, Side], sender: Workers, receiver: Workers) -> None:
        prefill, decode = sides
        self._decode = decode
        self._sender, self._receiver = sender, receiver
        self._plan = Plan(self._sender, self._receiver)
        self._sources = self._caches(prefill, self._sender)
        self._targets = self._caches(decode, self._receiver)
        self._leases = [Leases() for _ in range(prefill.ranks)]
        self._readers = [self._plan.readers(rank) for rank in range(prefill.ranks)]

    @staticmethod
    def _caches(side: Side, workers: Workers) -> list[Cache]:
        return [
            cache(
                side.layout,
                side.layers,
                side.blocks,
                len(workers.heads_of(rank)),
                side.block_size,
                WORDS,
            )
            for rank in range(side.ranks)
        ]

    def move(self, prompt: Prompt) -> Moved:
        """Compute a prompt, and let each decoding worker take its part."""
        start = min(prompt.tokens, prompt.cached * self._decode.block_size * self._decode.context)
        self._write(self._sender, self._sources, prompt, prompt.prefill, prompt.tokens)
        self._write(self._receiver, self._targets, prompt, prompt.decode, start)
        for rank, lease in enumerate(self._leases):
            lease.keep(prompt.number, self._readers[rank])
        steps: list[tuple[list[int], list[int]]] = []
        error = ""
        try:
            steps.extend(self._take(rank, prompt, start) for rank in prompt.order)
        except ValueError as raised:
            error = str(raised)
        content = [packed([*target]) for target in self._targets]
        return Moved(error, content, [read for read, _ in steps], [freed for _, freed in steps])

    def _take(self, rank: int, prompt: Prompt, start: int) -> tuple[list[int], list[int]]:
        tables = prompt.prefill, prompt.decode
        pieces = [*self._plan.pieces(rank, tables, start, prompt.tokens)]
        for piece in pieces:
            copy(piece, self._sources[piece.source], self._targets[rank])
        freed = [n for n, lease in enumerate(self._leases) if lease.done(prompt.number, rank)]
        return sorted({piece.source for piece in pieces}), freed

    @staticmethod
    def _write(
        workers: Workers, caches: list[Cache], prompt: Prompt, table: list[int], end: int
    ) -> None:
        for rank, pages in enumerate(caches):
            positions = [p for p in range(end) if workers.holds(rank, p)]
            heads = workers.heads_of(rank)
            content = words(prompt.number, len(pages), heads, positions)
            slots = [workers.slot(table, position) for position in positions]
            at = np.array(slots, np.int64).reshape(-1, 2)
            pages[:, at[:, 0], :, at[:, 1]] = content.transpose(2, 0, 1, 3)
