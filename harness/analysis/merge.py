"""Merges the runs of separate jobs into the events of one.

Jobs share work by target, by suite, by seed or by cells. A subject of several jobs gets one verdict
on all of their work: a failure stays a failure, and a property counts the situations of every job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from kvproof.harness.analysis.merge_sweep import SWEEP, merged_sweep
from kvproof.harness.decoding import read_bounded
from kvproof.harness.errors import UsageError
from kvproof.harness.records.eval_events import EvalConcluded
from kvproof.harness.records.events import (
    AnyEvent,
    BenchSample,
    Ended,
    Failure,
    PropertyVerdict,
    RunIncomplete,
    TargetStarted,
    Verdict,
)
from kvproof.harness.records.resume import final_verdicts
from kvproof.harness.records.run_directory import GIVE, Run

_ORDER: tuple[Verdict, ...] = ("fail", "pass", "expected_failure", "inconclusive", "unsupported")
"""Precedence when runs disagree on a property: the first verdict in this list wins."""

_ALIKE = ("kvproof",)
"""Versions that must not differ: runs of other code are compared, not merged."""


class Merged(NamedTuple):
    """Result of a merge."""

    events: list[AnyEvent]
    versions: dict[str, str]
    hardware: dict[str, str]
    """Facts that differ stand side by side."""


def merge(runs: Sequence[Run]) -> Merged:
    """Merge runs. Raises UsageError for other code, or if two of them measure the same thing."""
    _refuse_other_code(runs)
    _refuse_same_bench(runs)
    _refuse_same_evaluation(runs)
    events = [
        *_targets(runs),
        *_others(runs),
        *merged_sweep(runs),
        *_failures(runs),
        *_verdicts(runs),
        *_killed(runs),
    ]
    return Merged(
        events,
        _facts(run.manifest.versions for run in runs),
        _facts(run.manifest.hardware for run in runs),
    )


def _refuse_other_code(runs: Sequence[Run]) -> None:
    found = {name: {run.manifest.versions.get(name, "") for run in runs} for name in _ALIKE}
    found["commit"] = {run.manifest.commit or "" for run in runs}
    for name, values in found.items():
        if len(values) > 1:
            words = ", ".join(value or "unknown" for value in sorted(values))
            raise UsageError(
                f"the runs are of different code: {name} {words}",
                "merge the jobs of one commit; kvproof compare says what changed between two",
            )


def _refuse_same_bench(runs: Sequence[Run]) -> None:
    seen: dict[tuple[Any, ...], Run] = {}
    for run in runs:
        keys = {
            (e.target, e.workload, e.case, e.block_size, e.groups)
            for e in run.events
            if isinstance(e, BenchSample)
        }
        for key in keys:
            if key in seen:
                raise UsageError(
                    f"{str(seen[key].directory)!r} and {str(run.directory)!r} both measured "
                    f"{key[0]} on {key[1]}, {key[2]}, block {key[3]}",
                    "figures of two machines or minutes are no one figure: use kvproof compare",
                )
            seen[key] = run


def _refuse_same_evaluation(runs: Sequence[Run]) -> None:
    """A verdict is one over a whole table of pairs, which two runs do not share."""
    seen: dict[str, Run] = {}
    for run in runs:
        for name in {e.benchmark for e in run.events if isinstance(e, EvalConcluded)}:
            if name in seen:
                raise UsageError(
                    f"{str(seen[name].directory)!r} and {str(run.directory)!r} both evaluated "
                    f"{name}",
                    "give one of them, or compare both: kvproof compare",
                )
            seen[name] = run


def _targets(runs: Sequence[Run]) -> Iterator[AnyEvent]:
    started = {e.target: e for run in runs for e in run.events if isinstance(e, TargetStarted)}
    yield from started.values()


def _others(runs: Sequence[Run]) -> Iterator[AnyEvent]:
    """Events that need no merging: each once, in the order of the jobs."""
    merged = (TargetStarted, Failure, PropertyVerdict, Ended, *SWEEP)
    for run in runs:
        yield from (event for event in run.events if not isinstance(event, merged))


def _failures(runs: Sequence[Run]) -> Iterator[AnyEvent]:
    found: dict[tuple[str, str, str], Failure] = {}
    for event in _all(runs, Failure):
        key = (event.target, event.property, event.fingerprint)
        if key not in found or len(event.history) < len(found[key].history):
            found[key] = event
    yield from found.values()


def _verdicts(runs: Sequence[Run]) -> Iterator[AnyEvent]:
    groups: dict[tuple[str, str, str], list[PropertyVerdict]] = {}
    for run in runs:
        for event in final_verdicts(run.events):
            groups.setdefault((event.target, event.suite, event.property), []).append(event)
    yield from (_judged(same) for same in groups.values())


def _judged(same: Sequence[PropertyVerdict]) -> PropertyVerdict:
    first = min(same, key=lambda event: _ORDER.index(event.verdict))
    situations: Counter[str] = Counter()
    for event in same:
        situations.update(event.situations)
    checks = sum(event.checks for event in same)
    seen = first.situations and all(situations[name] for name in first.situations)
    if first.verdict == "inconclusive" and checks and seen and _only_lacked(same):
        first = replace(first, verdict="pass", reason="")
    return replace(first, checks=checks, situations=dict(situations))


def _only_lacked(same: Sequence[PropertyVerdict]) -> bool:
    """Whether no job had another reason than a situation that another job has seen."""
    return all(not e.reason or e.reason.startswith("never happened: ") for e in same)


def _killed(runs: Sequence[Run]) -> Iterator[AnyEvent]:
    """A job that did not end has not tested everything: that is no pass."""
    for run in runs:
        ended = run.ended
        if ended is None or ended.verdict in ("interrupted", "usage"):
            how = "was killed" if ended is None else f"ended as {ended.verdict}"
            yield RunIncomplete(run=str(run.directory), verb=run.manifest.verb, reason=how)


def _all(runs: Sequence[Run], kind: type[Any]) -> Iterator[Any]:
    return (event for run in runs for event in run.events if isinstance(event, kind))


def _facts(every: Iterable[dict[str, str]]) -> dict[str, str]:
    found: dict[str, dict[str, None]] = {}
    for facts in every:
        for name, value in facts.items():
            found.setdefault(name, {})[value] = None
    return {name: " | ".join(values) for name, values in found.items()}


def files_of(runs: Sequence[Run], keep: Callable[[str, bytes], object]) -> None:
    """Hand over the op logs and scripts of all failures, each name once."""
    seen = set()
    for run in runs:
        for event in _all([run], Failure):
            for name in (event.op_log, event.script_path):
                path = run.directory / name
                if name in seen or not path.resolve().is_relative_to(run.directory.resolve()):
                    continue  # a record of another machine names no other file of this one
                if path.is_file():
                    seen.add(name)
                    keep(name, read_bounded(path, what="the failure", hint=GIVE))
