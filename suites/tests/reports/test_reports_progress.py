"""The live display: every event a line in a pipe, only the notable ones on a terminal."""

from __future__ import annotations

import io
import threading
from pathlib import Path

import pytest
from rich.console import Console

from kvproof.harness.records.campaign_events import UnitDone
from kvproof.harness.records.events import AnyEvent, Explained, PropertyVerdict, Threshold
from kvproof.harness.records.run_directory import read_run
from kvproof.harness.records.sweep_events import Cell
from kvproof.reports.render.terminal import LiveProgress
from kvproof.suites.tests.patience import until

RECORDED = Path(__file__).parent / "snapshots" / "report_run"


def verdict(name: str, kind: str, reason: str = "") -> PropertyVerdict:
    return PropertyVerdict(
        target="reference",
        property=name,
        section="B",
        rules=["B1"],
        sentence="",
        verdict=kind,  # type: ignore[arg-type] # parametrised
        reason=reason,
    )


def console(*, tty: bool) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, force_terminal=tty, width=100, color_system=None), file


def test_a_pipe_gets_one_line_per_event() -> None:
    events: list[AnyEvent] = read_run(RECORDED).events
    screen, file = console(tty=False)
    with LiveProgress(screen) as live:
        for event in events:
            live.event(event)
    lines = file.getvalue().splitlines()
    noise = sum(
        isinstance(event, (Explained, UnitDone))
        or (isinstance(event, Cell) and event.outcome in ("ok", "unsupported"))
        or (isinstance(event, PropertyVerdict) and event.verdict == "unsupported")
        for event in events
    )
    folded = [line for line in lines if line.startswith("- unsupported ")]
    assert folded == ["- unsupported vllm==0.33.0: 5 properties, reasons in the report"]
    assert len(lines) == len(events) - noise + len(folded), (
        "one for each request, unit or cell would be noise"
    )
    assert "+ pass reference every_block_has_one_state" in lines
    assert all(line.strip() for line in lines)


def test_control_characters_do_not_reach_the_terminal() -> None:
    screen, file = console(tty=False)
    with LiveProgress(screen) as live:
        live.event(verdict("p", "fail", "a\nb\x1b[2J[red]"))
        live.status("r\x1b", "te\nxt\x07", 0, 0)
    assert file.getvalue().splitlines() == [
        "x FAIL reference p: a b\\x1b[2J[red]",
        "r\\x1b: te xt\\x07",
    ]


def test_a_status_in_a_pipe_is_told_when_its_words_change_or_time_has_passed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr("kvproof.reports.render.live.time.monotonic", lambda: clock[0])
    screen, file = console(tty=False)
    with LiveProgress(screen) as live:
        for done in range(50):
            clock[0] += 0.5
            live.status("reference", "suite cache", done, 1000)
        live.status("reference", "replay", 1, 2)
    assert file.getvalue().splitlines() == [
        "reference: suite cache (0 of 1,000)",
        "reference: suite cache (20 of 1,000)",
        "reference: suite cache (40 of 1,000)",
        "reference: replay (1 of 2)",
    ]


def test_a_pipe_is_not_silent_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("kvproof.reports.render.live.time.monotonic", lambda: clock[0])
    screen, file = console(tty=False)
    live = LiveProgress(screen)
    live.status("mine", "shrinking", 0, 0, seen=181)

    def wait(seconds: float) -> bool:
        clock[0] += seconds
        return clock[0] > 40

    monkeypatch.setattr(live._over, "wait", wait)
    live._break_silences()
    first, *others = file.getvalue().splitlines()
    assert first == "mine: shrinking, 181 histories seen"
    assert others == [f"{first} (nothing new for {silent} s)" for silent in (2, 4, 8, 10, 10)]


def test_a_terminal_shows_failures_above_and_counts_below() -> None:
    screen, file = console(tty=True)
    with LiveProgress(screen) as live:
        live.status("reference", "suite cache", 5, 10)
        live.event(verdict("quiet", "pass"))
        live.event(verdict("loud", "fail", "lost a block"))
        live.event(Threshold(name="speed", measured=1.0, limit=2.0, verdict="fail"))
    shown = file.getvalue()
    assert "✗ FAIL reference loud: lost a block" in shown
    assert "✗ FAIL speed: measured 1, limit 2" in shown
    assert "quiet" not in shown
    assert "✗ 1 ✓ 1" in shown
    assert "suite cache" in shown


def test_an_exception_ends_the_display() -> None:
    screen, _ = console(tty=True)
    before = set(threading.enumerate())  # one of an earlier test may end meanwhile
    with pytest.raises(KeyboardInterrupt), LiveProgress(screen):
        raise KeyboardInterrupt
    until(lambda: before.issuperset(threading.enumerate()))
