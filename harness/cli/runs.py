"""One run from the command to its exit code: directory, live progress, records, reports."""

from __future__ import annotations

import os
import platform
import secrets
import shlex
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
from rich.console import Console

from kvproof.harness.cli.output import standard_output
from kvproof.harness.cli.silence import left_to_a_display
from kvproof.harness.errors import Exit, UsageError, worst
from kvproof.harness.machine_limits import limit_of_the_machine
from kvproof.harness.records.eval_events import EvalConcluded
from kvproof.harness.records.events import (
    AnyEvent,
    BenchSample,
    BenchSummary,
    Checked,
    Ended,
    Exercised,
    Failure,
    HarnessFault,
    PropertyVerdict,
    Replayed,
    RunIncomplete,
    RunVerdict,
    Skipped,
    TargetConcluded,
    TargetFailed,
    Threshold,
    exit_code,
)
from kvproof.harness.records.fault_events import FaultsConcluded
from kvproof.harness.records.resume import once
from kvproof.harness.records.run_directory import Manifest, Run, RunWriter, read_run
from kvproof.harness.records.sweep_events import Slower, SweepConcluded
from kvproof.harness.redaction import redacted_tree
from kvproof.reports.render.markdown import append_step_summary, render_markdown
from kvproof.reports.render.render import render
from kvproof.reports.render.terminal import LiveProgress, print_run
from kvproof.reports.values.headline import leading, others

RUNS = Path("runs")
"""Default folder of runs."""

DATABASE = "example database"
"""The part of a campaign whose loss the verdict names."""

Resumes: TypeAlias = Literal["unfinished", "always", "never"]
"""The runs that a command continues, where `--output` holds one of the same command."""

_VERDICTS: dict[Exit, RunVerdict] = {
    Exit.PASS: "pass",
    Exit.FAILURE: "fail",
    Exit.INCONCLUSIVE: "inconclusive",
    Exit.REGRESSION: "regression",
    Exit.HARNESS: "harness",
    Exit.USAGE: "usage",
    Exit.INTERRUPTED: "interrupted",
}


class ActiveRun:
    """A run that is going on: write events, show progress, collect exit codes."""

    def __init__(self, writer: RunWriter, live: LiveProgress) -> None:
        self.writer = writer
        self._live = live
        self._counts: Counter[str] = Counter()
        """Outcomes that are not verdicts on a property -> how often."""
        self._counted: list[AnyEvent] = []
        """Events that may call for an exit code."""
        self._missing = ""
        self._unseen: list[str] = []
        """Situations that a pass has not judged."""
        self._concluded: dict[str, str] = {}
        """Evaluation -> sentence about it."""
        self.judged: set[str] = set()
        """Targets of which an earlier, interrupted part of the run has concluded every suite."""
        self.samples: list[BenchSample] = []
        self.earlier: Sequence[AnyEvent] = ()
        """All events that it has written."""
        self.exit_code = int(Exit.INTERRUPTED)
        """The verdict, once `run_directory` has closed the run."""

    def write(self, event: AnyEvent) -> None:
        """Record an event, show it, and let it count for the verdict."""
        self.writer.write(event)
        self._live.event(event)
        self.count(event)

    def take_over(self, events: Sequence[AnyEvent]) -> None:
        """Continue with the events of a resumed run.

        A target without a conclusion is tested again; of its events only verdicts and failures
        count, by the rule of `records.resume`.
        """
        self.judged = {event.target for event in events if isinstance(event, TargetConcluded)}
        self.earlier = events
        self.samples = [event for event in events if isinstance(event, BenchSample)]
        for event in events:
            judged = getattr(event, "target", "") in self.judged
            if isinstance(event, PropertyVerdict | Failure) or (
                judged and not isinstance(event, BenchSample)
            ):
                self.count(event)

    def count(self, event: AnyEvent) -> None:
        """Let an event count that is recorded already."""
        judges = isinstance(event, PropertyVerdict | Checked | Threshold)
        if isinstance(event, Skipped) and event.part == DATABASE:
            self._missing = f"without the {event.part}: {event.reason}"
        if judges or exit_code(event) or _what_is_wrong(event):
            self._counted.append(event)
        if isinstance(event, Exercised):
            self._unseen += event.unseen
        if isinstance(event, EvalConcluded):
            self._concluded[event.benchmark] = event.sentence
        if isinstance(event, Replayed):
            self._counts["logs pass" if event.outcome == "PASS" else f"logs {event.outcome}"] += 1
        if isinstance(event, BenchSummary):
            self._counts["measured"] += 1
        if isinstance(event, FaultsConcluded):
            self._counts.update(event.outcomes)
        if isinstance(event, SweepConcluded):
            for outcomes in event.outcomes.values():
                self._counts.update(outcomes)

    def status(
        self, target: str, text: str, done: int = 0, total: int = 0, *, seen: int = 0
    ) -> None:
        """Show where a target is: `done` of `total`, or after `seen` histories."""
        self._live.status(target, text, done, total, seen=seen)

    def ended(self, code: Exit | None = None, why: str = "") -> Ended:
        """Return the closing event; `code` and `why` belong to a run that was cut short."""
        counted = once(self._counted)
        parts = (why, *self._concluded.values(), *self._tally(counted), self._missing)
        code = worst([*map(exit_code, counted)]) if code is None else code
        if self._unseen and code is Exit.PASS:
            parts = (*parts, f"not seen: {', '.join(self._unseen)}")
        return Ended(
            verdict=_VERDICTS[code],
            exit_code=int(code),
            sentence="; ".join(part for part in parts if part) or "done",
            seconds=round(self.writer.seconds, 2),
        )

    def _tally(self, counted: Sequence[AnyEvent]) -> tuple[str, ...]:
        """Return the failures, the first of them, and the rest; logs lead where they alone fail."""
        verdicts = [event for event in counted if isinstance(event, PropertyVerdict)]
        failures = filter(None, map(_what_is_wrong, counted))
        first = next((f"first: {failure}" for failure in failures), "")
        alone = not any(verdict.verdict == "fail" for verdict in verdicts)
        logs = {kind: n for kind, n in self._counts.items() if kind in _BAD_LOGS and alone}
        rest = {kind: n for kind, n in self._counts.items() if kind not in logs}
        return _listed(logs), leading(verdicts), first, others(verdicts), _listed(rest)


_BAD_LOGS = ("logs FAILED", "logs ERROR")


def _listed(counts: Mapping[str, int]) -> str:
    said = ((kind.replace("logs ", "log ") if n == 1 else kind, n) for kind, n in counts.items())
    return ", ".join(f"{n} {kind}" for kind, n in sorted(said)).replace("_", " ")


def _what_is_wrong(event: AnyEvent) -> str:
    match event:
        case Failure() | PropertyVerdict(verdict="fail"):
            return f"{event.target}: {event.sentence}"
        case TargetFailed():
            return f"{event.target} died ({event.kind}): {event.message}"
        case Checked(verdict="fail") | Replayed(outcome="FAILED" | "ERROR"):
            return f"{event.target}: {event.message}"
        case Threshold(verdict="fail"):
            return f"{event.name} is {event.measured:g}"
        case SweepConcluded() | FaultsConcluded() if event.verdict != "pass":
            return event.reason
        case Slower():
            return f"{event.kernel} of {event.provider} takes {event.ratio:.2f} times the baseline"
        case HarnessFault():
            return f"kvproof failed: {event.message}"
        case RunIncomplete():
            return f"run {event.run!r} {event.reason}, it is not complete"
    return ""


@contextmanager
def run_directory(
    verb: str,
    *,
    config: dict[str, Any],
    output: Path | None,
    console: Console | None = None,
    seed: int | None = None,
    resumes: Resumes = "unfinished",
) -> Iterator[ActiveRun]:
    """Record one run; on leaving, close it, render its reports and set its `exit_code`.

    Ctrl-C ends the block, closes the records and gives 130; an error of kvproof itself gives 70:
    the verb returns `exit_code` after the block in any case. If `output` holds the same run, it
    continues there, as far as `resumes` allows. A UsageError, or a limit of the machine, is raised
    again after the records are closed; without records the folder is removed. The summary goes to
    standard output unless `console` is given.
    """
    console = console or standard_output()
    directory = output or new_directory(verb)
    manifest = new_manifest(verb, directory, config, seed)
    earlier = _earlier(directory, manifest, resumes)
    writer = RunWriter(directory, manifest)
    with left_to_a_display(), LiveProgress(console) as live:
        active = ActiveRun(writer, live)
        active.take_over(earlier)
        try:
            yield active
        except KeyboardInterrupt:
            ended = active.ended(Exit.INTERRUPTED, "interrupted")
        except UsageError as error:
            _stop(active, active.ended(Exit.USAGE, f"stopped: {error}"), console)
            raise
        except Exception as error:  # the last resort: a fault of the harness
            if limit := limit_of_the_machine(error):
                _stop(active, active.ended(Exit.USAGE, f"stopped: {limit[0]}"), console)
                raise
            active.write(_fault(verb, error))
            ended = active.ended()
        else:
            ended = active.ended()
        active.write(ended)
    try:
        publish(directory, console)
    except Exception as error:
        refused = (str(error), "") if isinstance(error, UsageError) else None
        if limit := refused or limit_of_the_machine(error):
            why = f"stopped while the reports were written: {limit[0]}"
            with suppress(UsageError):  # the other one is raised
                writer.write(active.ended(Exit.USAGE, why))
        raise
    finally:
        writer.close()
    active.exit_code = ended.exit_code


def _stop(active: ActiveRun, ended: Ended, console: Console) -> None:
    """Close a run that cannot go on. Best effort: its reason reaches the user anyway."""
    if active.writer.discard_if_empty():
        return
    with suppress(UsageError):
        active.writer.write(ended)
        active.writer.close()
        publish(active.writer.directory, console)


def publish(directory: Path, console: Console, formats: Sequence[str] = ()) -> None:
    """Render a run's reports, print the summary, and link `runs/latest` to it."""
    publish_run(read_run(directory), console, formats)


def publish_run(run: Run, console: Console, formats: Sequence[str] = ()) -> None:
    """Render a run's reports into its directory, print the summary, and link to it."""
    directory = run.directory
    render(run, directory=directory, formats=formats or ("html", "markdown", "junit"))
    print_run(run, console)
    append_step_summary(render_markdown(run))
    link_latest(directory)


def link_latest(directory: Path) -> None:
    """Let `runs/latest` be this run, if it is in `runs`."""
    latest = directory.parent / "latest"
    if directory.parent.name == RUNS.name and (latest.is_symlink() or not latest.exists()):
        _link(latest, directory.name)


def _link(latest: Path, name: str) -> None:
    """Best effort: some file systems have no links, and nothing depends on this one."""
    try:
        latest.unlink(missing_ok=True)
        latest.symlink_to(name)
    except OSError:
        return


def _earlier(directory: Path, manifest: Manifest, resumes: Resumes) -> list[AnyEvent]:
    if not (directory / "run.json").exists():
        return []
    run = read_run(directory)
    if resumes == "never":
        raise UsageError(f"{str(directory)!r} holds a run", "choose another --output")
    if difference := _difference(run.manifest, manifest):
        raise UsageError(
            f"{str(directory)!r} holds another run: {shlex.join(run.manifest.command)}{difference}",
            "choose another --output, or repeat that very command to resume it",
        )
    if resumes == "unfinished" and _is_complete(run.events, manifest.verb):
        raise UsageError(
            f"{str(directory)!r} holds this run, and it is complete",
            f"choose another --output; kvproof report {directory} renders it again",
        )
    return run.events


def _difference(before: Manifest, now: Manifest) -> str:
    """Name the first setting that differs; empty for the same command."""
    config = msgspec.json.decode(msgspec.json.encode(now.config))  # as it is stored
    if (before.verb, before.config, before.seed) == (now.verb, config, now.seed):
        return ""
    old, new = _flat(before.config), _flat(config)
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            return f": {name} was {old.get(name)!r} and is {new.get(name)!r}"
    return ": its verb or its seed was another one"


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    found: dict[str, Any] = {}
    for name, value in items:
        nested = isinstance(value, dict | list) and bool(value)
        key = f"{prefix}{name}"
        found |= _flat(value, f"{key}.") if nested else {key: value}
    return found


def _is_complete(events: Sequence[AnyEvent], verb: str) -> bool:
    """A run goes on that was killed or interrupted, or whose own process failed."""
    last = events[-1] if events else None
    if not isinstance(last, Ended) or last.verdict in ("interrupted", "usage"):
        return False
    before = events[-2:-1]
    return not any(isinstance(e, HarnessFault) and e.where == driver(verb) for e in before)


def driver(verb: str) -> str:
    """Name used in HarnessFault.where for errors of the command itself."""
    return f"kvproof {verb}"


def _fault(verb: str, error: Exception) -> HarnessFault:
    return HarnessFault(
        where=driver(verb),
        message=f"{type(error).__name__}: {error}",
        traceback="".join(traceback.format_exception(error)),
    )


def new_directory(verb: str) -> Path:
    """Where a run goes without --output."""
    stamp = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
    return RUNS / f"{stamp}-{verb}-{secrets.token_hex(2)}"


def new_manifest(
    verb: str, directory: Path, config: dict[str, Any], seed: int | None = None
) -> Manifest:
    """Describe the run and its machine."""
    return Manifest(
        id=directory.name,
        verb=verb,
        command=redacted_tree(["kvproof", *sys.argv[1:]]),
        started=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        config=redacted_tree(config),
        seed=seed,
        versions=versions(),
        hardware=hardware(),
        commit=_commit(),
        interpreter=sys.executable,
        folder=str(Path.cwd()),
    )


def versions() -> dict[str, str]:
    """Return the versions that a result may depend on."""
    found = {"python": platform.python_version()}
    for package in ("kvproof", "hypothesis", "numpy", "msgspec"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def hardware() -> dict[str, str]:
    """Return the facts that a speed may depend on."""
    return {
        "machine": platform.machine(),
        "system": platform.system(),
        "processor": _processor(),
        "cores": str(os.cpu_count()),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown")


def _commit() -> str | None:
    try:
        found = subprocess.run(  # noqa: S603 - fixed arguments
            ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"],  # noqa: S607 - the user's git
            capture_output=True,
            text=True,
            check=False,
            timeout=5,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None
