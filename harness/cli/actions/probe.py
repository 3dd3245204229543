"""`kvproof probe`: a black-box check of a running OpenAI-compatible server."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple
from urllib.parse import urlsplit, urlunsplit

from rich.console import Console

from kvproof.harness.cli.arguments.probe import ProbeArguments
from kvproof.harness.cli.duration import seconds
from kvproof.harness.cli.output import standard_output
from kvproof.harness.cli.runs import ActiveRun, run_directory
from kvproof.harness.cli.secrets import read_secret
from kvproof.harness.errors import UsageError
from kvproof.harness.http.client import HttpClient
from kvproof.harness.records.events import Skipped, TargetFailed
from kvproof.suites.probe.answers import NoAnswer
from kvproof.suites.probe.asker import Asker
from kvproof.suites.probe.check import ANSWERED, Verdict
from kvproof.suites.probe.depths import read_depths
from kvproof.suites.probe.events import exercised, failure, property_verdict, started
from kvproof.suites.probe.facts import Facts
from kvproof.suites.probe.server_connection import (
    Budget,
    BudgetExhausted,
    ServerConnection,
    ServerUnreachable,
)
from kvproof.suites.probe.session import Session
from kvproof.suites.probe.survey import served, survey
from kvproof.suites.probe.traffic.replay import TraceReplay, open_trace
from kvproof.suites.probe.traffic.trace_session import TraceSession


def probe(url: str, given: ProbeArguments) -> int:
    """Check a running server from outside; returns the exit code. Raises UsageError."""
    if given.max_requests < 1:
        raise UsageError(
            f"--max-requests {given.max_requests} must be at least 1", "for example 1000"
        )
    if given.tolerance < 0:
        raise UsageError(f"--tolerance {given.tolerance:g} must not be negative", "for example 0.2")
    if given.pace <= 0 or given.chunk < 0 or (given.trace is None and given.chunk):
        raise UsageError(
            f"--pace {given.pace:g} and --chunk {given.chunk} do not fit a replay",
            "for example --trace trace.jsonl --pace 2 --chunk 2048",
        )
    replay = TraceReplay(open_trace(given.trace), given.pace, given.chunk) if given.trace else None
    key = read_secret("--api-key-file", given.api_key_file) or given.api_key
    deep, timeout = read_depths(given.depths), seconds(given.timeout)
    address, console = _address(url), standard_output()
    budget = Budget(requests=given.max_requests, seconds=seconds(given.max_time))

    def line_to(where: str) -> ServerConnection:
        return ServerConnection(HttpClient(where, key=key), budget, timeout=timeout)

    asked = _Settings(
        address, line_to(address), given.model, given.tolerance, console, deep, replay=replay
    )
    if given.against:
        other = _address(given.against)
        asked = asked._replace(against=other, reference=line_to(other))
    config = {
        "url": address, "model": given.model, "against": asked.against, "depths": list(deep),
        "max_requests": given.max_requests, "max_time": budget.seconds, "timeout": timeout,
        "tolerance": given.tolerance, "trace": str(given.trace or ""), "pace": given.pace,
        "chunk": given.chunk,
    }  # fmt: skip
    with run_directory("probe", config=config, output=given.output, console=console) as active:
        _run(active, asked)
    return active.exit_code


class _Settings(NamedTuple):
    url: str
    line: ServerConnection
    model: str
    tolerance: float
    console: Console
    depths: tuple[int, ...] = ()
    against: str = ""
    reference: ServerConnection | None = None
    replay: TraceReplay | None = None

    @property
    def target(self) -> str:
        """Name of the server in reports."""
        return urlsplit(self.url).netloc


def _address(url: str) -> str:
    """Return the address of the API: `/v1`, unless another path is given. Raises UsageError."""
    text = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(text)
    except ValueError:
        return text  # the client reports the error in it
    path = parts.path.rstrip("/") or "/v1"
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))


def _run(active: ActiveRun, asked: _Settings) -> None:
    line = asked.line

    def show(text: str) -> None:
        active.status(asked.target, text, line.budget.used, line.budget.requests)

    show("what the server takes")
    try:
        facts = survey(line, url=asked.url, model=asked.model)
        common = (line, facts, asked.tolerance, show, _reference(asked, facts), asked.depths)
        session = TraceSession(*common, replay=asked.replay) if asked.replay else Session(*common)
        session.measure()
    except (NoAnswer, BudgetExhausted, ServerUnreachable) as why:
        _write(active, _unanswered(line, why), asked)
        return
    event = started(session, asked.target)
    active.write(event)
    if asked.console.is_terminal:  # elsewhere every event is a line
        asked.console.print(f"{event.engine} {event.version}", highlight=False, markup=False)
    _judge(active, session, asked)


def _reference(asked: _Settings, facts: Facts) -> Asker | None:
    """Return an asker of the other server, with the same words. Raises UsageError."""
    if asked.reference is None:
        return None
    try:
        model = served(asked.reference, url=asked.against, model=asked.model)
    except UsageError as error:
        raise UsageError(f"--against: {error}", error.hint) from None
    return Asker(asked.reference, replace(facts, model=model))


def _unanswered(line: ServerConnection, why: Exception) -> Verdict:
    failed = isinstance(why, ServerUnreachable) or getattr(why, "trouble", "") in (
        "failed",
        "malformed",
    )
    log = line.log
    if failed:
        return Verdict(ANSWERED, "fail", str(why), checks=len(log), history=log[-1:])
    return Verdict(ANSWERED, "inconclusive", str(why), checks=len(log))


def _write(active: ActiveRun, verdict: Verdict, asked: _Settings) -> None:
    if verdict.outcome == "fail" and verdict.history:
        active.write(failure(verdict, active.writer, target=asked.target, url=asked.url))
    active.write(property_verdict(verdict, asked.target))


def _judge(active: ActiveRun, session: Session, asked: _Settings) -> None:
    verdicts, target = [], asked.target
    for verdict in session.verdicts():
        verdicts.append(verdict)
        _write(active, verdict, asked)
    active.write(exercised(session, verdicts, target))
    if session.gone:
        active.write(TargetFailed(target=target, kind="crash", message=session.gone))
    if not session.asker.reports_cached:
        hint = session.facts.rules.counts_option
        active.write(Skipped(part="cached_tokens", reason="no answer has them", command=hint))
