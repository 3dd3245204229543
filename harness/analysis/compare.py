"""Compares two sides of one or several runs: verdicts, then figures, with an error rate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from kvproof.harness.analysis.environment import CARD, MACHINE, Difference, differences
from kvproof.harness.analysis.estimate import Estimate, decide, estimate, least_p
from kvproof.harness.analysis.series import (
    COUNTED,
    SHOWN,
    Key,
    Metric,
    Series,
    paired,
    rounds,
    series_of,
)
from kvproof.harness.analysis.verdicts import FAILED, UNKNOWN, VerdictChange, changes, outcomes
from kvproof.harness.errors import Exit, UsageError, worst
from kvproof.harness.records.events import Ended, HarnessFault, RunIncomplete
from kvproof.harness.records.run_directory import Run
from kvproof.harness.settings import CompareSettings
from kvproof.harness.statistics import holm

RowChange: TypeAlias = Literal["slower", "faster", "worse", "better", "same", "inconclusive"]
"""`worse` and `better` are of figures that are counted."""

LOSSES = ("slower", "worse")

LEAST_ROUNDS = 3
"""Sides that took turns at least so often saw the same machine; else it may have drifted."""

_APART = 2.0
"""Times the threshold that sides measured one after the other may differ by."""

_CLOCKS = 0.05
"""Clocks of a GPU that differ by more explain any difference in time."""


class Row(NamedTuple):
    """One figure on both sides."""

    key: Key
    base: float
    """Median, in the unit of the metric."""
    head: float
    change: RowChange
    threshold: float
    """Largest change that counts as none, as a fraction; wider if the sides took no turns."""
    found: Estimate | None
    """None for counts."""
    p: float | None
    """Two-sided, adjusted for all rows that were tested."""
    turns: int
    """How often the sides took turns."""
    peer: bool
    reason: str = ""
    """Why it is inconclusive."""

    @property
    def ratio(self) -> float:
        """Cost of the head over that of the base."""
        if self.found is not None:
            return self.found.ratio
        return self.head / self.base if self.base else float("inf") if self.head else 1.0


@dataclass(frozen=True)
class Comparison:
    """Changes between two sides, and the refused comparisons."""

    base: tuple[Run, ...]
    head: tuple[Run, ...]
    settings: CompareSettings
    differences: tuple[Difference, ...]
    refused: tuple[str, ...]
    """Comparisons that would be meaningless, with the reason."""
    verdicts: tuple[VerdictChange, ...]
    judged: int
    """Properties, cells, checks, op logs and targets with an outcome on both sides."""
    rows: tuple[Row, ...]
    only_base: int
    """Figures and outcomes that the other side does not have."""
    only_head: int

    @property
    def changed(self) -> tuple[Row, ...]:
        """Rows that are slower, faster, worse or better, the largest loss first."""
        found = [row for row in self.rows if row.change not in ("same", "inconclusive")]
        return tuple(sorted(found, key=lambda row: (row.change not in LOSSES, -row.ratio)))

    @property
    def undecided(self) -> tuple[Row, ...]:
        """Rows without a decision."""
        return tuple(row for row in self.rows if row.change == "inconclusive")

    @property
    def counts(self) -> Counter[str]:
        """Change -> rows."""
        return Counter(row.change for row in self.rows)

    @property
    def unfinished(self) -> tuple[Run, ...]:
        """Runs of the head that were cut short: their missing verdicts may be failures."""
        return tuple(run for run in self.head if not _finished(run))

    @property
    def code(self) -> Exit:
        """1 for a new failure, 4 for a loss, 3 if something could not be decided, else 0."""
        codes = [Exit.PASS]
        worse = [each for each in self.verdicts if each.trend == "worse"]
        if any(each.rank >= FAILED for each in worse):
            codes.append(Exit.FAILURE)
        if any(each.rank == UNKNOWN for each in worse):
            codes.append(Exit.INCONCLUSIVE)
        if any(row.change in LOSSES and not row.peer for row in self.rows):
            codes.append(Exit.REGRESSION)
        if self.rows and len(self.undecided) == len(self.rows):
            codes.append(Exit.INCONCLUSIVE)
        if self.unfinished:
            codes.append(Exit.INCONCLUSIVE)
        return worst(codes)


def compare(base: Sequence[Run], head: Sequence[Run], settings: CompareSettings) -> Comparison:
    """Compare two sides. Raises UsageError if they have nothing in common."""
    _refuse_equal(base, head)
    before, after = _compared(base), _compared(head)
    old, new = outcomes(base), outcomes(head)
    found = differences(base, head)
    forbidden = _forbidden(found)
    common = [key for key in before if key in after]
    both = [subject for subject in old if subject in new]
    moved = changes(old, new)
    if not (common or moved or any(subject.kind != "target" for subject in both)):
        raise UsageError(
            f"{_names(base)} and {_names(head)} have no figure and no verdict in common",
            "compare runs of one verb, on the same targets, workload and cells",
        )
    pairs = [(before[key], after[key]) for key in common if not forbidden(key)]
    margins = [_margin(base, head, settings) for base, head in pairs]
    rows = judge(pairs, margins, alpha=settings.alpha)
    return Comparison(
        base=tuple(base),
        head=tuple(head),
        settings=settings,
        differences=tuple(found),
        refused=tuple(_refused(common, found)),
        verdicts=tuple(moved),
        judged=len(both),
        rows=tuple(rows),
        only_base=len(before) - len(common) + len(old) - len(both),
        only_head=len(after) - len(common) + len(new) - len(both),
    )


def _compared(runs: Sequence[Run]) -> dict[Key, Series]:
    return {key: found for key, found in series_of(runs).items() if key.metric not in SHOWN}


def _finished(run: Run) -> bool:
    if any(isinstance(event, HarnessFault | RunIncomplete) for event in run.events):
        return False
    last = run.events[-1] if run.events else None  # a resumed run may have ended before
    return isinstance(last, Ended) and last.verdict not in ("interrupted", "usage", "harness")


def _refuse_equal(base: Sequence[Run], head: Sequence[Run]) -> None:
    both = {run.directory.resolve() for run in base} & {run.directory.resolve() for run in head}
    if both:
        raise UsageError(
            f"{str(min(both))!r} is on both sides", "name another run: nothing differs from itself"
        )


def _names(runs: Sequence[Run]) -> str:
    return ", ".join(str(run.directory) for run in runs)


class _Forbidden(NamedTuple):
    times: bool
    kernels: bool

    def __call__(self, key: Key) -> bool:
        if key.metric == "kernel":
            return self.kernels
        return self.times and key.metric not in COUNTED


def _forbidden(found: Sequence[Difference]) -> _Forbidden:
    reasons = {each.forbids for each in found}
    return _Forbidden(times=MACHINE in reasons, kernels=CARD in reasons)


def _refused(common: Sequence[Key], found: Sequence[Difference]) -> Iterator[str]:
    forbidden = _forbidden(found)
    for reason, kernels in ((MACHINE, False), (CARD, True)):
        lost = [key for key in common if forbidden(key) and (key.metric == "kernel") is kernels]
        facts = [f"{each.what}: {each.base} and {each.head}" for each in found
                 if each.forbids == reason]  # fmt: skip
        if lost:
            what = "kernel times" if kernels else "times of benches"
            yield f"{len(lost)} {what} are not compared: {reason} ({'; '.join(facts)})"


def judge(
    pairs: Sequence[tuple[Series, Series]], margins: Sequence[float], *, alpha: float
) -> list[Row]:
    """Compare figures of base and head as one table: the only rule of kvproof for this.

    `margins` are the largest changes that count as none. The p values of measured figures are
    adjusted for all rows, so that equal sides have any row called slower or faster with at most
    `alpha`.
    """
    tested = [at for at, (base, _) in enumerate(pairs) if base.key.metric not in COUNTED]
    estimates = {
        at: estimate(base.runs, head.runs, margin=margins[at], paired=paired(base, head))
        for at, (base, head) in enumerate(pairs)
        if base.key.metric not in COUNTED
    }
    raw = [min(1.0, 2 * min(each.p_slower, each.p_faster)) for each in estimates.values()]
    adjusted = dict(zip(tested, holm(raw), strict=True))
    return [
        _measured(pair, estimates[at], adjusted[at], margins[at], alpha, len(tested))
        if at in estimates
        else _counted(pair, margins[at])
        for at, pair in enumerate(pairs)
    ]


def _margin(base: Series, head: Series, settings: CompareSettings) -> float:
    metric: Metric = base.key.metric
    threshold: float = getattr(settings.threshold, metric)
    if metric in COUNTED or rounds(base, head) >= LEAST_ROUNDS:
        return threshold
    return threshold * _APART


def _measured(
    pair: tuple[Series, Series],
    found: Estimate,
    p: float,
    margin: float,
    alpha: float,
    tested: int,
) -> Row:
    base, head = pair
    change = decide(found, p, margin=margin, alpha=alpha)
    reason = ""
    if change != "same" and (clocks := _clocks(base, head)):
        change, reason = "inconclusive", clocks
    elif change == "inconclusive":
        reason = _why(found, margin, alpha, tested)
    before, after = (float(np.median(np.concatenate(side.runs))) for side in pair)
    turns = rounds(base, head)
    return Row(
        base.key, before, after, change, margin, found, p, turns, base.peer or head.peer, reason
    )


def _clocks(base: Series, head: Series) -> str:
    if not (base.clocks and head.clocks):
        return ""
    before, after = float(np.median(base.clocks)), float(np.median(head.clocks))
    if abs(after / before - 1) <= _CLOCKS:
        return ""
    return f"the GPU ran at {before:.0f} MHz, then at {after:.0f} MHz"


def _why(found: Estimate, margin: float, alpha: float, tested: int) -> str:
    many = f"{found.base_n} and {found.head_n} {found.counted}"
    if found.counted == "pairs of runs":
        many = f"{found.base_n} {found.counted}"
    if 2 * tested * found.least_p >= alpha:
        needed = next(n for n in range(2, 100) if 2 * tested * least_p(n, n, found.counted) < alpha)
        return f"{many} cannot show anything among {tested} rows: {needed} on each side can"
    return (
        f"the interval {found.low:.3f} to {found.high:.3f} reaches over {100 * margin:g} %: "
        f"{many} are too few for this noise"
    )


def _counted(pair: tuple[Series, Series], margin: float) -> Row:
    base, head = pair
    before, after = (float(np.median(np.concatenate(side.runs))) for side in pair)
    change: RowChange = "same"
    if after > before * (1 + margin):
        change = "worse"
    elif before > after * (1 + margin):
        change = "better"
    peer = base.peer or head.peer
    return Row(base.key, before, after, change, margin, None, None, rounds(base, head), peer)


def sides(rows: Sequence[Row]) -> Mapping[bool, int]:
    """How many rows were measured in turns, and how many one after the other."""
    return Counter(row.turns >= LEAST_ROUNDS for row in rows if row.found is not None)
