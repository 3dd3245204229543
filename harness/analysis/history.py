"""Many runs together: trends, expected failures, corpus, faults, verdicts over time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kvproof.harness.analysis.change_points import Step, steps
from kvproof.harness.analysis.series import Key, series_of
from kvproof.harness.analysis.verdicts import outcomes
from kvproof.harness.errors import UsageError
from kvproof.harness.records.below import files_below
from kvproof.harness.records.events import Failure, PropertyVerdict, Replayed
from kvproof.harness.records.fault_events import FaultJudged
from kvproof.harness.records.resume import final_verdicts
from kvproof.harness.records.run_directory import Run, read_run
from kvproof.harness.records.sweep_results import started
from kvproof.harness.settings import Thresholds


class Point(NamedTuple):
    """One figure of one run."""

    run: int
    """Number of the run in the history."""
    value: float
    """Median of its samples."""


class Trend(NamedTuple):
    """One figure on one machine over the runs that have it."""

    key: Key
    machine: str
    points: tuple[Point, ...]
    steps: tuple[Step, ...]
    """`at` counts points, not runs."""


class Expected(NamedTuple):
    """A failure that is expected, and since when."""

    target: str
    property: str
    reason: str
    since: datetime
    runs: int
    """Runs in a row, up to the last that judged it."""
    days: float
    over: bool
    """The last run that judged it did not expect it any more."""


class Strip(NamedTuple):
    """Outcomes of one thing over the runs that judged it; (run, outcome) where it changed."""

    name: str
    spans: tuple[tuple[int, int, str], ...]
    """First run, last run, outcome."""

    @property
    def changed(self) -> bool:
        """Whether it was not the same all the time."""
        return len({outcome for _, _, outcome in self.spans}) > 1


@dataclass(frozen=True)
class History:
    """Many runs, by the time when they started."""

    runs: tuple[Run, ...]
    unreadable: tuple[str, ...]
    trends: tuple[Trend, ...]
    expected: tuple[Expected, ...]
    corpus: tuple[Point, ...]
    """Op logs of the corpus that a run replayed."""
    failures: tuple[Point, ...]
    """Different failures that were found up to a run, by fingerprint."""
    faults: tuple[Strip, ...]
    verdicts: tuple[Strip, ...]


def read_history(directory: Path) -> tuple[list[Run], list[str]]:
    """Runs below a directory, and unreadable ones. Raises UsageError for none."""
    runs, unreadable = [], []
    seen = set()
    for path in files_below(directory, "run.json"):
        place = path.parent.resolve()
        if place in seen:
            continue
        seen.add(place)
        try:
            runs.append(read_run(path.parent))
        except UsageError as error:
            unreadable.append(str(error))
    if not runs:
        raise UsageError(
            f"there is no run below {str(directory)!r}", "give the folder of runs, for example runs"
        )
    return sorted(runs, key=lambda run: began(run)), unreadable


def began(run: Run) -> datetime:
    """When a run started."""
    return datetime.fromisoformat(run.manifest.started)


def history(runs: Sequence[Run], thresholds: Thresholds, unreadable: Sequence[str] = ()) -> History:
    """Look at runs that are in order of time."""
    return History(
        runs=tuple(runs),
        unreadable=tuple(unreadable),
        trends=tuple(_trends(runs, thresholds)),
        expected=tuple(_expected(runs)),
        corpus=tuple(_corpus(runs)),
        failures=tuple(_fingerprints(runs)),
        faults=tuple(_strips(_fault_outcomes(runs))),
        verdicts=tuple(_strips(_verdict_outcomes(runs))),
    )


def _trends(runs: Sequence[Run], thresholds: Thresholds) -> Iterator[Trend]:
    """Figures of different machines are different series."""
    found: dict[tuple[Key, str], list[Point]] = {}
    for number, run in enumerate(runs):
        for key, series in series_of([run]).items():
            value = float(np.median(np.concatenate(series.runs)))
            found.setdefault((key, _machine(run, key)), []).append(Point(number, value))
    for (key, machine), points in found.items():
        threshold: float = getattr(thresholds, key.metric)
        levels = steps([point.value for point in points], threshold=threshold)
        yield Trend(key, machine, tuple(points), tuple(levels))


def _machine(run: Run, key: Key) -> str:
    if key.metric == "kernel" and (sweep := started(run.events)):
        return ", ".join(sorted({device.name for device in sweep.devices}))
    facts = run.manifest.hardware
    cores = f", {facts['cores']} cores" if "cores" in facts else ""
    return f"{facts.get('processor', 'unknown')}{cores}"


def _expected(runs: Sequence[Run]) -> Iterator[Expected]:
    judged: dict[tuple[str, str], list[tuple[datetime, PropertyVerdict]]] = {}
    for run in runs:
        for event in final_verdicts(run.events):
            judged.setdefault((event.target, event.property), []).append((began(run), event))
    for (target, name), recorded in judged.items():
        excused = [event.verdict == "expected_failure" for _, event in recorded]
        if not any(excused):
            continue
        end = len(excused) - excused[::-1].index(True)
        start = end
        while start and excused[start - 1]:
            start -= 1
        (since, _), (until, event) = recorded[start], recorded[end - 1]
        days = (until - since).total_seconds() / 86_400
        over = end < len(excused)
        yield Expected(target, name, event.reason, since, end - start, days, over)


def _corpus(runs: Sequence[Run]) -> Iterator[Point]:
    for number, run in enumerate(runs):
        if run.manifest.verb == "replay":
            continue  # recorded failures, not the corpus
        paths = {e.path.rpartition("/")[2] for e in run.events if isinstance(e, Replayed)}
        if paths:
            yield Point(number, len(paths))


def _fingerprints(runs: Sequence[Run]) -> Iterator[Point]:
    seen: set[tuple[str, str]] = set()
    for number, run in enumerate(runs):
        before = len(seen)
        seen |= {(e.property, e.fingerprint) for e in run.events if isinstance(e, Failure)}
        if len(seen) > before:
            yield Point(number, len(seen))


def _fault_outcomes(runs: Sequence[Run]) -> Iterator[tuple[int, Mapping[str, str]]]:
    for number, run in enumerate(runs):
        found = {e.fault: e.outcome for e in run.events if isinstance(e, FaultJudged)}
        if found:
            yield number, found


def _verdict_outcomes(runs: Sequence[Run]) -> Iterator[tuple[int, Mapping[str, str]]]:
    for number, run in enumerate(runs):
        found = {s: each for s, each in outcomes([run]).items() if s.kind == "property"}
        yield number, {f"{s.target}: {s.name}": each.verdict for s, each in found.items()}


def _strips(recorded: Iterator[tuple[int, Mapping[str, str]]]) -> Iterator[Strip]:
    found: dict[str, list[tuple[int, int, str]]] = {}
    for number, every in recorded:
        for name, outcome in every.items():
            spans = found.setdefault(name, [])
            if spans and spans[-1][2] == outcome:
                spans[-1] = (spans[-1][0], number, outcome)
            else:
                spans.append((number, number, outcome))
    yield from (Strip(name, tuple(spans)) for name, spans in found.items())
