"""A signal is not lost in a place where Python drops exceptions."""

from __future__ import annotations

import gc
import signal
import sys
import time
import weakref
from collections.abc import Iterator

import pytest

from kvproof.harness.isolation import signals as interrupts
from kvproof.suites.tests.patience import LONG


@pytest.fixture(autouse=True)
def handlers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    names = (signal.SIGUSR1, signal.SIGALRM)
    before = {name: signal.getsignal(name) for name in names}
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    yield
    for name, handler in before.items():
        signal.signal(name, handler)


def _until_interrupted() -> None:
    with pytest.raises(KeyboardInterrupt):
        time.sleep(LONG)


def test_a_signal_interrupts() -> None:
    interrupts.listen(signal.SIGUSR1)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGUSR1)


def test_a_signal_during_a_callback_of_the_collector_comes_after_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    interrupts.listen(signal.SIGUSR1)

    def callback(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            signal.raise_signal(signal.SIGUSR1)

    gc.callbacks.append(callback)
    try:
        gc.collect()
    finally:
        gc.callbacks.remove(callback)
    _until_interrupted()
    assert capsys.readouterr().err == ""


def test_a_signal_during_a_finaliser_comes_after_it(capsys: pytest.CaptureFixture[str]) -> None:
    interrupts.listen(signal.SIGUSR1)

    class Final:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGUSR1)

    del (final := [Final()])[:]
    assert final == []
    _until_interrupted()
    assert capsys.readouterr().err == ""


def test_a_signal_that_is_due_before_the_hook_has_ended_comes_after_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a busy machine, where the hook takes longer than the time until the next try."""
    interrupts.listen(signal.SIGUSR1)
    due = signal.setitimer

    def late(which: int, seconds: float) -> None:
        monkeypatch.setattr(signal, "setitimer", due)
        due(which, seconds)
        time.sleep(5 * seconds)

    class Final:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGUSR1)

    monkeypatch.setattr(signal, "setitimer", late)
    del (final := [Final()])[:]
    assert final == []
    _until_interrupted()
    assert capsys.readouterr().err == ""


def test_a_signal_during_a_weak_reference_s_callback_comes_after_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    interrupts.listen(signal.SIGUSR1)
    things = [{1}]
    reference = weakref.ref(things[0], lambda _: signal.raise_signal(signal.SIGUSR1))
    del things[:]
    assert reference() is None
    _until_interrupted()
    assert capsys.readouterr().err == ""


def test_other_dropped_exceptions_are_still_printed(capsys: pytest.CaptureFixture[str]) -> None:
    interrupts.listen(signal.SIGUSR1)

    class Final:
        def __del__(self) -> None:
            raise ValueError("block 7")

    del (final := [Final()])[:]
    assert final == []
    assert "ValueError: block 7" in capsys.readouterr().err


def test_what_the_shell_ignores_stays_ignored() -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    interrupts.listen(signal.SIGUSR1)
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN


def test_what_is_held_comes_afterwards() -> None:
    interrupts.listen(signal.SIGALRM)
    done = []

    def work() -> None:
        with interrupts.held():
            signal.raise_signal(signal.SIGALRM)
            signal.raise_signal(signal.SIGALRM)
            done.append(True)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGALRM)


def test_what_the_shell_ignores_is_not_held() -> None:
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    with interrupts.held():
        signal.raise_signal(signal.SIGALRM)
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_IGN
