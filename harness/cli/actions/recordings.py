"""Recordings of `kvproof record`: judge them, run them again on targets, explain their hits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kvproof.harness.bench.explain_job import Story
from kvproof.harness.cli.output import print_text
from kvproof.harness.cli.runs import ActiveRun, run_directory
from kvproof.harness.errors import TargetDied, UsageError
from kvproof.harness.isolation.handles import Handle
from kvproof.harness.isolation.registry import OwnTargets, open_handle
from kvproof.harness.oracle.violation import Violation
from kvproof.harness.recorder.explain import ExplainedHit
from kvproof.harness.recorder.recording import Header, Recording, is_recording, recordings
from kvproof.harness.recorder.rerun import Rerun, rerun
from kvproof.harness.recorder.verdict import Broken, Judged, doubts, judge
from kvproof.harness.records.events import Checked, Explained
from kvproof.harness.watch.incidents import incident_of
from kvproof.reports.values.text import clean, plural
from kvproof.suites.framework.component_suite import Counterexample, History, carry_out
from kvproof.suites.framework.shrink import minimise
from kvproof.suites.framework.suite import bound
from kvproof.suites.runner.replay import known_failures, target_failed
from kvproof.suites.runner.runner import stored_failure
from kvproof.suites.whole_engine.properties import HITS
from kvproof.suites.whole_engine.recorded import Recorded, history_of
from kvproof.suites.whole_engine.strategies import SUITE as ENGINE
from kvproof.suites.whole_engine.strategies import traits_of

SLOTS = "slots are read"
_SHOWN = 5
"""Most requests of a rerun whose hits are printed for both sides."""


def are_recordings(paths: Sequence[Path]) -> bool:
    """Whether all paths are recordings. Raises UsageError for a mixture."""
    kinds = {is_recording(path) for path in paths}
    if len(kinds) > 1:
        raise UsageError(
            "some of these are recordings, others are not", "replay them one kind at a time"
        )
    return True in kinds


def replay(
    paths: Sequence[Path], *, targets: Sequence[str], output: Path | None, own: OwnTargets
) -> int:
    """Judge the recorded answers, or run the requests again on targets; returns the exit code."""
    found = [recording for path in paths for recording in recordings(path)]
    config = {
        "recordings": [str(path) for path in paths],
        "targets": list(targets),
        **own.recorded(),
    }
    with run_directory("replay", config=config, output=output) as active:
        for recording in found:
            if not targets:
                _judge(active, recording)
            for spec in targets:
                _again(active, recording, spec, own)
    return active.exit_code


def _judge(active: ActiveRun, recording: Recording) -> None:
    header = recording.header
    active.status(header.target, "judging what was recorded")
    judged = judge(recording)
    doubt = _doubt(header, judged, judged.hit_tokens)
    active.write(_checked(recording, header.target, judged, judged.broken, doubt))
    _say(f"{recording.name}: {_summary(recording, judged)}")


def _doubt(header: Header, found: Judged | Rerun, hit_tokens: int) -> str:
    """Return why a history without a violation proves little; empty: it does not."""
    why = doubts(header, stopped=found.stopped, requests=found.requests, hits=hit_tokens)
    return "; ".join(why)


def _checked(
    recording: Recording,
    target: str,
    found: Judged | Rerun,
    broken: Broken | Violation | None,
    doubt: str,
) -> Checked:
    return Checked(
        target=target,
        workload=f"recording {recording.name}",
        block_size=recording.header.block_size,
        num_blocks=recording.header.num_blocks,
        requests=found.requests,
        tokens=found.tokens,
        slots_compared=found.slots_compared,
        verdict="fail" if broken else "inconclusive" if doubt else "pass",
        message=str(broken or doubt),
    )


def _summary(recording: Recording, judged: Judged) -> str:
    happened = [plural(count, what) for what, count in judged.happened.items() if count]
    parts = [
        f"{plural(judged.operations, 'operation')}, {plural(judged.requests, 'request')}, "
        f"{judged.hit_tokens:,} of {judged.tokens:,} tokens hit ({', '.join(happened) or 'no hit'})"
    ]
    if recording.dropped:
        parts.append(
            f"the first {plural(recording.dropped, 'file')} dropped: what "
            f"{plural(judged.trusted, 'block')} held was taken on trust"
        )
    return "; ".join(parts)


def _again(active: ActiveRun, recording: Recording, spec: str, own: OwnTargets) -> None:
    header = recording.header
    active.status(spec, f"running {recording.name} again")
    try:
        with open_handle(spec, options=own) as handle:
            if ENGINE.name in handle.profile.component_suites:
                _on_its_loop(active, recording, handle)
                return
            found = rerun(recording, handle.create(header.config))
    except TargetDied as died:
        active.write(target_failed(spec, died))
        return
    doubt = _doubt(header, found, found.target)
    active.write(_checked(recording, spec, found, found.violation, doubt))
    for line in _compared(header.target, spec, found):
        _say(line)


def _on_its_loop(active: ActiveRun, recording: Recording, handle: Handle) -> None:
    """Run the requests on an engine's own loop over the shadow device."""
    suite = bound(ENGINE, handle).knowing(known_failures(handle))
    made = history_of(recording, traits_of(suite.component))
    history, found = History(suite.component, made.config), None
    try:
        carry_out(history, made.operations)
    except Violation as violation:
        found = Counterexample(violation, history)
    known = found and history.recognise(found.violation)
    doubt = _loop_doubt(recording.header, made, history)
    if known:
        found, doubt = None, f"a known failure ended it: {known.name}"
    if found:
        active.status(handle.name, "shrinking")
        small = minimise(suite.component, found)
        active.write(stored_failure(active.writer, handle.name, suite, small, None))
    seen = history.coverage.situations
    active.write(
        Checked(
            target=handle.name,
            workload=f"recording {recording.name}",
            block_size=recording.header.block_size,
            num_blocks=recording.header.num_blocks,
            requests=made.requests,
            tokens=made.tokens,
            slots_compared=seen[SLOTS],
            verdict="fail" if found else "inconclusive" if doubt else "pass",
            message=str(found.violation) if found else doubt,
        )
    )
    _say(
        f"{recording.name} on the loop of {handle.name}: {plural(made.requests, 'request')} of "
        f"{made.tokens:,} tokens, {plural(seen[HITS], 'hit')}, {seen[SLOTS]:,} slots compared"
    )
    for line in _shown(recording, made, found):
        _say(line)


def _shown(recording: Recording, made: Recorded, found: Counterexample | None) -> list[str]:
    """Return how a replay compares with the failure that was recorded or watched."""
    before = incident_of(recording.paths[0].parent) or _recorded_failure(recording)
    if not before:
        return []
    if found is None:
        lost = "; ".join(made.left_out)
        return [f"  {before} does not show again. A replay does not carry: {lost}"]
    same = found.violation.property == before
    return [f"  it shows {'again' if same else 'as ' + found.violation.property + ': ' + before}"]


def _recorded_failure(recording: Recording) -> str:
    """Return the property that the recorded answers break; empty: none."""
    broken = judge(recording).broken
    return broken.violation.property if broken else ""


def _loop_doubt(header: Header, made: Recorded, history: History) -> str:
    found = [f"the recorder gave up: {made.stopped}"] if made.stopped else []
    if refused := getattr(history.machine, "refused", ""):
        found.append(f"the engine refuses the configuration: {refused}")
    left_out = sum(each.answer == "ignored" for each in history.operations)
    if left_out:
        found.append(f"{plural(left_out, 'operation')} could not be carried out")
    if not made.requests:
        found.append("no request was admitted")
    elif not history.coverage.situations[HITS] and header.prefix_caching:
        found.append("no request hit anything: what is reused was never read")
    return "; ".join(found)


def _compared(recorded: str, spec: str, found: Rerun) -> list[str]:
    lines = [
        f"{plural(found.requests, 'request')} of {found.tokens:,} tokens: {recorded} hit "
        f"{found.recorded:,}, {spec} hits {found.target:,}; "
        f"{plural(len(found.differences), 'difference')}"
        + (f"; {spec} had no room {plural(found.refused, 'time')}" if found.refused else "")
    ]
    lines += [
        f"  {each.name} ({each.milliseconds / 1000:.3f} s, {each.prompt:,} tokens): "
        f"{each.recorded:,} when recorded, {each.target:,} on {spec}"
        for each in found.differences[:_SHOWN]
    ]
    more = len(found.differences) - _SHOWN
    return lines + ([f"  and {more:,} more"] if more > 0 else [])


def _say(text: str) -> None:
    print_text(clean(text))


def explained(path: Path) -> Story:
    """Explain the hit of each recorded request. Raises UsageError."""
    explained: list[Explained] = []
    stopped = ""
    for recording in recordings(path):
        judged = judge(recording, explain=True)
        stopped = str(judged.broken or judged.stopped or stopped)
        explained += [_event(recording, each) for each in judged.explained]
    if not explained:
        raise UsageError(f"{str(path)!r} admits no request", "record for longer")
    return Story(explained, stopped)


def _event(recording: Recording, explained: ExplainedHit) -> Explained:
    header = recording.header
    return Explained(
        target=header.target,
        workload=recording.name,
        block_size=header.block_size,
        num_blocks=header.num_blocks,
        request=explained.name,
        prompt=explained.prompt,
        hit=explained.hit,
        optimum=explained.optimum,
        lost=explained.lost,
        sentence=explained.sentence,
    )
