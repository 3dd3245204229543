"""Progress of a run: one live line per target, or plain lines in a pipe."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from kvproof.harness.records.bench_events import (
    BenchGiven,
    BenchPair,
    GrowthPoint,
    SchedulerPoint,
    TierSample,
    TierSummary,
)
from kvproof.harness.records.campaign_events import UnitDone, UnitLost
from kvproof.harness.records.eval_events import EvalFigure, EvalTable
from kvproof.harness.records.events import (
    AnyEvent,
    BenchSample,
    BenchSummary,
    Checked,
    Ended,
    Exercised,
    Explained,
    Failure,
    HarnessFault,
    Optimum,
    PropertyVerdict,
    Replayed,
    RunIncomplete,
    Skipped,
    TargetConcluded,
    TargetFailed,
    TargetStarted,
    Threshold,
)
from kvproof.harness.records.fault_events import FaultJudged, FaultsConcluded, FaultsStarted
from kvproof.harness.records.sweep_events import (
    Ceilings,
    Cell,
    Slower,
    SweepConcluded,
    SweepStarted,
)
from kvproof.harness.records.sweep_results import case_name
from kvproof.reports.charts import bench, schedulers, tiers
from kvproof.reports.model import evaluation, faults
from kvproof.reports.model.attention import replay_verdict, threshold_text
from kvproof.reports.render.console import STYLES, Screen
from kvproof.reports.values.text import (
    MARKS,
    clean,
    duration,
    listed,
    one_line,
    percent,
    plural,
    scaled,
    short_path,
    significant,
)

QUIET_SECONDS = 10.0
"""Without a terminal, an unchanged status is repeated after this many seconds."""

SILENCE_SECONDS = 2.0
"""Seconds without news until a line reports the silence, and a terminal the age of the status."""

_TICK = 0.25
"""Seconds between two looks at the clock."""

_SPOKEN = frozenset({"fail", "inconclusive"})

_EXPECTED = frozenset({"ok", "unsupported"})


@dataclass
class _Status:
    text: str = ""
    done: int = 0
    total: int = 0
    seen: int = 0
    since: float = 0.0
    """When it was set, monotonic."""
    shown: float = field(default=float("-inf"))
    verdicts: Counter[str] = field(default_factory=Counter)

    @property
    def line(self) -> str:
        """The activity, with the histories seen."""
        return f"{self.text}, {self.seen:,} histories seen" if self.seen else self.text


class LiveProgress:
    """Shows events and status as they arrive. A context manager; thread-safe."""

    def __init__(self, console: Console) -> None:
        self._screen = Screen(console)
        self._statuses: dict[str, _Status] = {}
        self._latest = ""
        """The target whose status came last."""
        self._folded: Counter[str] = Counter()
        """Target -> unsupported properties since the last line about them."""
        self._said, self._patience = time.monotonic(), SILENCE_SECONDS
        self._over = threading.Event()
        self._ticker = threading.Thread(target=self._break_silences, daemon=True)
        self._lock = threading.RLock()
        self._live = (
            Live(console=console, transient=True, refresh_per_second=8, get_renderable=self._table)
            if console.is_terminal
            else None
        )

    def __enter__(self) -> LiveProgress:
        if self._live:
            self._live.start()
        else:
            self._ticker.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._unfold()
        if self._live:
            self._live.stop()
        else:
            self._over.set()
            self._ticker.join()

    def _break_silences(self) -> None:
        """In a pipe, repeat the last status after 2 s of silence, later after up to 10 s."""
        while not self._over.wait(_TICK):
            with self._lock:
                silent = time.monotonic() - self._said
                if self._latest and silent >= self._patience:
                    self._patience = min(2 * self._patience, QUIET_SECONDS)
                    line = self._statuses[self._latest].line
                    self._say("", f"{self._latest}: {line} (nothing new for {silent:.0f} s)")

    def event(self, event: AnyEvent) -> None:
        """Show an event: in a pipe every one as a line, in a terminal only notable ones.

        Explanations, units, good cells and figures of evaluations are left out: there are many of
        them, and reports and `kvproof explain` have them.
        """
        if isinstance(event, (Explained, UnitDone, EvalFigure, EvalTable)):
            return
        if isinstance(event, Cell) and event.outcome in _EXPECTED:
            return
        with self._lock:
            if isinstance(event, PropertyVerdict):
                self._of(event.target).verdicts[event.verdict] += 1
                if event.verdict == "unsupported":
                    self._folded[event.target] += 1
                    return
            elif not isinstance(event, Exercised):  # of the next suite
                self._unfold()
            verdict, line = describe(event)
            if not self._live or verdict in _SPOKEN or isinstance(event, SweepStarted):
                self._say(verdict, line)

    def _unfold(self) -> None:
        """In a pipe, unsupported properties are one line: their reasons are in the report."""
        for target, count in self._folded.items():
            if not self._live:
                line = f"{target}: {plural(count, 'property')}, reasons in the report"
                self._say("unsupported", line)
        self._folded.clear()

    def status(self, target: str, text: str, done: int, total: int, *, seen: int = 0) -> None:
        """Set the activity of a target: `done` of `total`, or `seen` histories; 0: unknown."""
        with self._lock:
            self._latest, status = target, self._of(target)
            changed, status.text = status.text != text, text
            status.done, status.total = done, total
            status.seen, status.since = seen, time.monotonic()
            if not self._live:
                self._tell(target, status, changed=changed)

    def _of(self, target: str) -> _Status:
        return self._statuses.setdefault(target, _Status())

    def _tell(self, target: str, status: _Status, *, changed: bool) -> None:
        now = time.monotonic()
        if changed or now - status.shown >= QUIET_SECONDS:
            status.shown = now
            progress = f" ({status.done:,} of {status.total:,})" if status.total else ""
            self._say("", f"{target}: {status.line}{progress}")

    def _say(self, verdict: str, line: str) -> None:
        self._said = time.monotonic()
        mark = self._screen.mark(verdict).append(" ") if verdict in MARKS else Text()
        whole = mark.append_text(self._screen.text(clean(one_line(line))))
        self._screen.console.print(whole, soft_wrap=True, highlight=False, markup=False)

    def _table(self) -> Table:
        with self._lock:
            table = Table.grid(padding=(0, 2))
            table.add_column(no_wrap=True, overflow="ellipsis")
            table.add_column(no_wrap=True, width=16)
            table.add_column(no_wrap=True)
            table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
            for target, status in self._statuses.items():
                table.add_row(*self._row(target, status))
            return table

    def _row(self, target: str, status: _Status) -> tuple[Text, ProgressBar | Text, Text, Text]:
        bar: ProgressBar | Text = Text()
        if status.total:
            bar = ProgressBar(
                total=status.total, completed=min(status.done, status.total), width=16
            )
        counts = Text()
        for name in MARKS:
            if status.verdicts[name]:
                counts.append(f"{self._screen.symbol(name)} {status.verdicts[name]} ", STYLES[name])
        quiet = time.monotonic() - status.since
        waiting = f" (nothing new for {quiet:.0f} s)" if quiet >= SILENCE_SECONDS else ""
        shown = self._screen.text(clean(one_line(status.line + waiting)))
        return self._screen.text(clean(target), "bold"), bar, counts, shown


def describe(event: AnyEvent) -> tuple[str, str]:
    """(verdict, or empty for news; one line) for any event."""
    match event:
        case TargetStarted():
            return "", f"{event.target}: {event.engine} {event.version} started ({event.isolation})"
        case PropertyVerdict():
            reason = f": {event.reason}" if event.reason else ""
            return event.verdict, f"{event.target} {event.property}{reason}"
        case Failure():
            return "", f"{event.target} {event.property}: {event.sentence} ({event.script_path})"
        case TargetFailed():
            return "fail", f"{event.target}: {event.kind}: {event.message}"
        case TargetConcluded():
            return "", f"{event.target}: every suite is concluded"
        case HarnessFault():
            return "inconclusive", f"kvproof itself failed in {event.where}: {event.message}"
        case RunIncomplete():
            return "inconclusive", f"run {event.run!r} {event.reason}: {event.verb} is not complete"
        case Skipped():
            hint = f"; to have it: {event.command}" if event.command else ""
            return "", f"skipped {event.part}: {event.reason}{hint}"
        case UnitLost():
            return "", f"{event.unit}: attempt {event.attempt} lost: {event.reason}"
        case Ended():
            return "", f"ended after {duration(event.seconds)}: {event.sentence}"
        case _:
            return _describe_measure(event)


def _describe_measure(event: AnyEvent) -> tuple[str, str]:
    match event:
        case Exercised():
            cases = plural(event.test_cases, "test case")
            return "", f"{event.target} {event.suite}: {cases} in {duration(event.seconds)}"
        case BenchSample():
            work = f"{event.workload}, block {event.block_size}, {event.case}"
            return "", f"{event.target} {work}: repetition {event.repetition}"
        case BenchSummary():
            work = f"{event.workload}, block {event.block_size}, {event.case}"
            rate = f"{scaled(event.tokens_per_second)} tokens/s {bench.ratio_text(event)}"
            return "", f"{event.target} {work}: {rate}"
        case BenchPair():
            ratio = f"{significant(event.ratio)} times {event.peer}"
            return "", f"{event.target} block {event.block_size}, {event.case}: {ratio}"
        case BenchGiven():
            return "", f"{event.target} {event.version}: {bench.work(event.lacks)}"
        case Optimum():
            size = "infinite" if event.capacity is None else plural(event.capacity, "block")
            work = f"{event.workload}, block {event.block_size}, {size}"
            rates = {"infinite": event.infinite, "LRU": event.lru, "Belady": event.belady}
            shown = [f"{name} {percent(r, 2)}" for name, r in rates.items() if r is not None]
            return "", f"optimum of {work}: {', '.join(shown)}"
        case GrowthPoint():
            cost = f"{event.nanoseconds_per_token:.3g} ns/token"
            return "", f"{event.target} with {plural(event.cached_blocks, 'cached block')}: {cost}"
        case TierSample():
            return "", f"{event.target} {event.operation}: repetition {event.repetition}"
        case TierSummary():
            return "", f"{event.target} {': '.join(tiers.row(event)[1:5])}"
        case SchedulerPoint():
            at, name, share, *_ = schedulers.row(event)
            return "", f"{name}, {at}: {share}"
        case Checked():
            work = f"{event.workload}, block {event.block_size}, under the shadow memory"
            return event.verdict, f"{event.target} {work} {event.message}"
        case Threshold():
            return event.verdict, f"{event.name}: {threshold_text(event)}"
        case Replayed():
            outcome = "" if event.outcome == "PASS" else f": {event.outcome}"
            return replay_verdict(event), f"{event.target} {short_path(event.path)}{outcome}"
        case Explained():
            return "", f"{event.target} {event.request}: {event.sentence}"
        case _:
            return _describe_sweep(event)


def _time_of(sweep: SweepStarted) -> str:
    """How long a sweep takes, as far as it is known."""
    if sweep.budget and sweep.budget < sweep.expected:
        whole, budget = duration(sweep.expected), duration(sweep.budget)
        share = f"{sweep.budget / sweep.expected:.0%}".replace("%", " %")
        return f": all cells take about {whole}, the budget of {budget} ends it with about {share}"
    return f": about {duration(sweep.expected)}" if sweep.expected else ""


def _describe_sweep(event: AnyEvent) -> tuple[str, str]:
    match event:
        case SweepStarted():
            kernels = listed([kernel.name for kernel in event.kernels], 8)
            providers = listed([provider.name for provider in event.providers], 8)
            line = f"sweep of {kernels} by {providers} on {event.device}"
            return "", f"{line}{_time_of(event)}"
        case Ceilings():
            shown = [
                f"{name} {scaled(limit.value)}{limit.unit}"
                for name, limit in event.values.items()
                if limit.unit != "s"
            ]
            return "", f"device {event.device}: {', '.join(shown)}"
        case Cell():
            fine = event.peer or event.outcome in _EXPECTED or event.is_crowded_baseline
            verdict = "" if fine else "fail"
            outcome = event.outcome.replace("_", " ")
            where = f"{event.kernel} {event.provider} {case_name(event.case)}"
            return verdict, f"{where}: {outcome} {event.reason}"
        case Slower():
            where = f"{event.kernel} {event.provider} {case_name(event.case)}"
            return "fail", f"{where}: {event.ratio:.2f} times the time of the baseline"
        case SweepConcluded():
            missing = f", {len(event.missing)} never ran" if event.missing else ""
            return "", f"{plural(event.planned, 'cell')} planned{missing}"
        case FaultsStarted() | FaultJudged() | FaultsConcluded():
            return faults.describe(event)
        case _:
            return evaluation.describe(event)
