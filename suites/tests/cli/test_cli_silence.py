"""No verb is silent for over two seconds, and none writes a line without need."""

from __future__ import annotations

import sys
import time

import pytest
from rich.console import Console

from kvproof.harness.cli import app as application
from kvproof.harness.cli import silence
from kvproof.harness.cli.app import VERBS
from kvproof.harness.cli.output import print_text
from kvproof.harness.cli.progress import progress
from kvproof.harness.cli.silence import broken_silence, left_to_a_display


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "FIRST", 0.1)
    monkeypatch.setattr(silence, "_TICK", 0.02)


def test_every_verb_breaks_its_silence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(application, "app", lambda *_, **__: time.sleep(0.25))
    for verb in VERBS:
        application.main([verb])
        assert f"{verb}: at work for 0 s\n" in capsys.readouterr().err


def test_what_writes_in_time_gets_no_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(silence, "FIRST", 0.6)
    with broken_silence("history"):
        for _ in range(20):
            time.sleep(0.05)
            print_text("a line")
    assert "at work" not in capsys.readouterr().err


def test_the_lines_become_rarer(capsys: pytest.CaptureFixture[str]) -> None:
    with broken_silence("history"):
        print_text("reading")
        time.sleep(1.0)
    lines = capsys.readouterr().err.splitlines()
    assert 2 <= len(lines) <= 4
    assert all("nothing new for" in line for line in lines)


@pytest.mark.parametrize("verb", ["serve", "cache-server"])
def test_a_server_is_silent_once_it_listens(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with broken_silence(verb):
        time.sleep(0.2)
        print_text("listening")
        time.sleep(0.3)
    assert capsys.readouterr().err.count("at work") == 1


def test_a_live_display_has_its_own_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with broken_silence("run"), left_to_a_display():
        time.sleep(0.3)
    assert capsys.readouterr().err == ""


def test_progress_off_a_terminal_has_its_own_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with broken_silence("eval"), progress(Console(force_terminal=False), every=0.15) as show:
        show("off", 1, 4)
        time.sleep(0.4)
    output = capsys.readouterr()
    assert output.err == ""
    assert output.out.count("off (1 of 4") in (2, 3)


def test_without_a_thread_the_verb_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(silence.threading.Thread, "start", none)
    with broken_silence("plan"):
        sys.stdout.write("planned\n")
