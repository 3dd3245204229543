"""Logits of a served request against those of a cold engine.

The tokens are drawn, so both compute the same request. A cold engine runs eagerly, and answers some
requests twice, in unlike company. Bits repeat in most rows and not in all of them: kernels choose
the order of a sum by the shape of the step. So a served row has to come as near as the two cold
ones, FACTOR times over, or nearer than LEAST. Where the two differ by more than MOST, nothing is
judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

FACTOR = 8.0
LEAST = 4.0
"""In steps of the model's numbers (`torch.finfo.eps`)."""
MOST = 0.05
"""Norms of a difference over the norm of the logits. A slot of a hundred counts a hundredth."""

Rows: TypeAlias = dict[str, dict[int, npt.NDArray[np.float32]]]
"""Request -> position -> logits after it."""
Verdict = Literal["pass", "inconclusive", "fail"]


class Judged(NamedTuple):
    """Verdict of the answers."""

    verdict: Verdict
    sentence: str
    request: str = ""
    """The first request whose answers differ."""


class Logits:
    """The logits of the steps since the last look, on the device."""

    def __init__(self) -> None:
        self._kept: list[tuple[list[str], Any, Any]] = []

    def keep(self, batch: Any, positions: Any, logits: Any) -> None:
        """Keep the rows of a step; the tensors are not written again."""
        counts = np.diff(batch.cu_num_logits_np)
        names = [name for name, count in zip(batch.req_ids, counts) for _ in range(count)]  # noqa: B905 - rows of padding have no name
        self._kept.append((names, positions, logits))

    def take(self) -> Rows:
        """Return them, and forget them; waits for the device."""
        found: Rows = {}
        for names, positions, logits in self._kept:
            values = logits[: len(names)].float().cpu().numpy()
            for name, at, own in zip(names, positions.tolist(), values):  # noqa: B905 - as above
                found.setdefault(name, {})[at] = own
        self._kept.clear()
        return found


def judge(
    served: Rows, cold: Rows, again: Rows, first: Mapping[str, int], *, resolution: float
) -> Judged:
    """Judge served logits by two cold engines.

    `first`: request -> the last position of its prompt; logits before it are of chunks.
    `resolution`: the relative distance of two numbers of the model.
    """
    noise, whose = _noise(cold, again, first)
    if not whose or noise > MOST:
        said = f"two cold engines differ by {noise:.2g}{whose}" if whose else "nothing was repeated"
        return Judged("inconclusive", said)
    limit = max(FACTOR * noise, LEAST * resolution)
    count, equal, worst = 0, 0, 0.0
    for name, rows in served.items():
        found = _differences(rows, cold.get(name, {}), first[name])
        count += len(found)
        equal += sum(not each for each in found.values())
        at = max(found, key=lambda each: found[each], default=-1)
        if at < 0:
            continue
        worst = max(worst, found[at])
        if found[at] > limit:
            sentence = (
                f"logits of {name} after position {at} differ from a cold engine's by "
                f"{found[at]:.2g}, {limit:.2g} are allowed"
            )
            return Judged("fail", sentence, name)
    said = f"{equal} of {count} rows equal those of a cold engine bit by bit, worst {worst:.2g}"
    return Judged("pass", said)


def _noise(cold: Rows, again: Rows, first: Mapping[str, int]) -> tuple[float, str]:
    """Return how far two cold engines differ, and where; nowhere: they have nothing in common."""
    found = [
        (away, f" after position {at} of {name}")
        for name, rows in again.items()
        for at, away in _differences(rows, cold.get(name, {}), first[name]).items()
    ]
    return max(found, default=(0.0, ""))


def _differences(
    rows: Mapping[int, npt.NDArray[np.float32]],
    others: Mapping[int, npt.NDArray[np.float32]],
    first: int,
) -> dict[int, float]:
    return {
        at: float(np.linalg.norm(own - others[at]) / np.linalg.norm(others[at]))
        if not np.array_equal(own, others[at])
        else 0.0
        for at, own in rows.items()
        if at >= first and at in others
    }
