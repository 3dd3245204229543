"""No verb is silent for over two seconds, and none writes a line without need."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack

import pytest
from rich.console import Console

from kvproof.harness.cli import app as application
from kvproof.harness.cli import silence
from kvproof.harness.cli.app import VERBS
from kvproof.harness.cli.output import print_text
from kvproof.harness.cli.progress import progress
from kvproof.harness.cli.silence import broken_silence, left_to_a_display
from kvproof.suites.tests.patience import until


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "FIRST", 0.1)
    monkeypatch.setattr(silence, "_TICK", 0.02)


class Clock:
    """Seconds that pass only where a watcher waits for its next look."""

    def __init__(self, end: float, deeds: Mapping[float, Callable[[], None]]) -> None:
        self.now, self.end, self.deeds = 0.0, end, deeds

    def monotonic(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        self.deeds.get(self.now, lambda: None)()
        return self.now > self.end


Watched = Callable[..., list[str]]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Watched:
    """Watch a verb for so many seconds; returns the lines about its silence."""

    def watch(verb: str, seconds: float, says: Mapping[float, Callable[[], None]]) -> list[str]:
        clock = Clock(seconds, says)
        monkeypatch.setattr(silence, "time", clock)
        monkeypatch.setattr(silence, "_silence", silence._Silence())
        silence._watch(verb, clock)  # type: ignore[arg-type]  # it only waits
        return capsys.readouterr().err.splitlines()

    return watch


def test_every_verb_breaks_its_silence(
    quick: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []

    def is_said() -> bool:
        said.append(capsys.readouterr().err)
        return "at work" in said[-1]

    monkeypatch.setattr(application, "app", lambda *_, **__: until(is_said))
    for verb in VERBS:
        application.main([verb])
        assert said[-1].startswith(f"{verb}: at work for ")


def test_what_writes_in_time_gets_no_line(watched: Watched) -> None:
    def speak() -> None:
        print_text("a line")

    assert watched("history", 60, {1.5 * n: speak for n in range(60)}) == []
    assert watched("history", 60, {2.5 * n: speak for n in range(60)}) != []


def test_the_lines_become_rarer(watched: Watched) -> None:
    lines = watched("history", 40, {0.25: lambda: print_text("reading")})
    assert lines == [
        f"history: at work for {silent:.0f} s (nothing new for {silent:.0f} s)"
        for silent in (2, 4, 8, 16, 26, 36)
    ]


@pytest.mark.parametrize("verb", ["serve", "cache-server"])
def test_a_server_is_silent_once_it_listens(verb: str, watched: Watched) -> None:
    lines = watched(verb, 60, {5.0: lambda: print_text("listening")})
    assert lines == [f"{verb}: at work for 2 s", f"{verb}: at work for 4 s"]


def test_a_live_display_has_its_own_lines(watched: Watched) -> None:
    with ExitStack() as display:
        shown = {0.25: lambda: display.enter_context(left_to_a_display())}
        assert watched("run", 60, shown) == []


def test_progress_off_a_terminal_has_its_own_lines(
    quick: None, capsys: pytest.CaptureFixture[str]
) -> None:
    said = ["", ""]

    def lines() -> int:
        new = capsys.readouterr()
        said[:] = [said[0] + new.out, said[1] + new.err]
        return said[0].count("off (1 of 4")

    with broken_silence("eval"), progress(Console(force_terminal=False), every=0.15) as show:
        show("off", 1, 4)
        until(lambda: lines() >= 3)
    assert said[1] == ""


def test_without_a_thread_the_verb_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(silence.threading.Thread, "start", none)
    with broken_silence("plan"):
        sys.stdout.write("planned\n")
