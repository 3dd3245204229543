"""False alarms: how often correct engines fail, and how often broken ones do; resumable."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from kvproof.suites.tests.lab.eval_power import noises

Kept = dict[str, Counter[str]]
"""Name of an engine -> its verdicts so far; their number is the next seed."""

_BROKEN = ("exact", "float32", "16 bits", "experts, 1 % of answers off")


class Case(NamedTuple):
    """An engine, and how many runs of it."""

    name: str
    engine: noises.Draw
    runs: int


def cases(runs: int) -> tuple[list[Case], list[Case]]:
    """Return correct engines, and those with a wrong block in a tenth as many runs."""
    correct = [Case(name, engine, runs) for name, engine in noises.MODELS.items()]
    struck = ("", *(group.situations[-1] for group in noises.GROUPS[1:]))
    broken = [
        Case(f"{name}, {at or 'all hits'}", noises.broken(noises.MODELS[name], at), -(-runs // 10))
        for name in _BROKEN
        for at in struck
    ]
    return correct, broken


def judged(wanted: list[Case], kept: Kept, *, until: float) -> None:
    """Add verdicts to `kept`; no run begins after `until`, of the monotonic clock."""
    for case in wanted:
        found = kept.setdefault(case.name, Counter())
        for seed in range(found.total(), case.runs):
            if time.monotonic() > until:
                return
            found[noises.verdict(case.engine, np.random.default_rng([7, seed]))] += 1


def rows(wanted: list[Case], kept: Kept) -> Iterator[str]:
    """Yield a table in Markdown."""
    yield "| engine | runs | FAIL | inconclusive | pass |"
    yield "| --- | --: | --: | --: | --: |"
    for case in wanted:
        found = kept.get(case.name, Counter())
        counts = (found[each] for each in ("fail", "inconclusive", "pass"))
        yield f"| {' | '.join(map(str, (case.name, found.total(), *counts)))} |"


def read(path: Path | None) -> Kept:
    """Return the verdicts of a file; none if there is none yet."""
    if path is None or not path.exists():
        return {}
    stored = msgspec.json.decode(path.read_bytes(), type=dict[str, dict[str, int]])
    return {name: Counter(each) for name, each in stored.items()}
