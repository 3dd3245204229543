"""Expert rows on the nodes of the index, and the histories of running requests (R1-R3)."""

from __future__ import annotations

from array import array
from collections.abc import Mapping

import numpy.typing as npt

from kvproof.reference.cache.expert_history import (
    ExpertFormat,
    ExpertHistory,
    ExpertStore,
    Place,
    Recorded,
)
from kvproof.reference.cache.request_state import Live
from kvproof.reference.cache.step_fence import Scheduled
from kvproof.reference.core.block_pool import Ids
from kvproof.reference.core.identity import TOKEN_BYTES
from kvproof.reference.prefix.node import Node, Piece


class ExpertMarks:
    """Keeps nodes and `ExpertStore` agreed, and one history for each request."""

    def __init__(self, form: ExpertFormat) -> None:
        self.store = ExpertStore(form)
        self._unit = form.unit
        self._histories: dict[Live, ExpertHistory] = {}

    def floor(self, node: Node, tokens: int) -> int:
        """Return how many of the first `tokens` tokens on a path have rows, in whole units (R3)."""
        return min(tokens, self.store.first_missing(_path(node)) * self._unit)

    def start(self, request: Live) -> None:
        """Begin with a request behind its hit."""
        self._histories[request] = ExpertHistory(self.store.form, request.computed)

    def check(self, scheduled: Scheduled, rows: npt.ArrayLike) -> None:
        """Raise ValueError unless there is one well-formed row for each token of a step."""
        given = self.store.form.rows(rows)
        count = scheduled.stop - self._histories[scheduled.request].length
        if len(given) != count:
            raise ValueError(f"{len(given)} expert rows for the {count} tokens of a step")

    def record(self, scheduled: Scheduled, stop: int, rows: Mapping[str, npt.ArrayLike]) -> None:
        """Keep the rows of a step, one for each token that it computed, up to `stop` (R1, X5)."""
        history = self._histories[scheduled.request]
        count = scheduled.stop - history.length
        history.append(history.length, count, rows.get(scheduled.request.id))
        history.truncate(stop)

    def index(self, request: Live, pieces: list[Piece]) -> None:
        """Fill the units of `pieces` that have no rows yet (R3)."""
        history = self._histories[request]
        whole = -(-history.hit // self._unit)
        for piece in pieces:
            node, last = piece.node, piece.last
            first = max(piece.first, whole)  # a unit that was hit in part has no rows there (T6)
            if first < last:
                start, stop = first * self._unit, last * self._unit
                history.index(self.store, node, first - node.start, start, stop)

    def recorded(self, request: Live) -> Recorded:
        """Return the rows of every token but the last, or which are missing (R2)."""
        total = len(request.tokens) // TOKEN_BYTES
        return self._histories[request].recorded(total, self.store, _path(request.node))

    def release(self, request: Live) -> None:
        """Forget the history of a request."""
        self._histories.pop(request, None)

    def split(self, front: Node, back: Node) -> None:
        """Divide the rows of `back` (see `Attached`)."""
        self.store.move(back, front, front.units)

    def trim(self, node: Node, units: int) -> Ids:
        """Forget the rows of the last units; there are no ids to free."""
        self.store.keep(node, node.units - units)
        return array("i")


def _path(node: Node) -> list[Place]:
    """Owners from the root of the index down to a node."""
    places: list[Place] = [(step, step.units) for step in node.path()]
    return places[::-1]
