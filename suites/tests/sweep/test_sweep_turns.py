"""Processes of one device prepare side by side and time one at a time."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from kvproof.harness.sweep.turns import Turns

SECONDS = 20.0
"""For another thread to come to a place."""


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Turns, Turns]:
    """Two processes as the lock sees them: each has opened the file itself."""
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    return Turns("GPU-1"), Turns("GPU-1")


def test_two_prepare_side_by_side(two: tuple[Turns, Turns]) -> None:
    with two[0].preparing(), two[1].preparing():
        pass


def test_one_that_times_waits_for_those_that_prepare_and_they_for_it(
    two: tuple[Turns, Turns],
) -> None:
    seen: list[str] = []
    alone, over = threading.Event(), threading.Event()

    def first() -> None:
        with two[0].preparing(), two[0].alone():
            seen.append("alone")
            alone.set()
            over.wait(SECONDS)
            seen.append("over")

    thread = threading.Thread(target=first)
    with two[1].preparing():
        thread.start()
        assert not alone.wait(0.2)
        seen.append("prepared")
    assert alone.wait(SECONDS)
    threading.Thread(target=lambda: (time.sleep(0.2), over.set())).start()
    with two[1].preparing():
        seen.append("next")
    thread.join(SECONDS)
    assert seen == ["prepared", "alone", "over", "next"]


def test_devices_do_not_wait_for_each_other(two: tuple[Turns, Turns]) -> None:
    other = Turns("GPU-2")
    with two[0].preparing(), two[0].alone(), other.preparing(), other.alone():
        pass
