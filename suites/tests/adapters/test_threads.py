"""Threads whose tasks are stopped before they are awaited."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from kvproof.harness.isolation.threads import interruptible


def ended_by(error: BaseException, stop: Callable[[], None], task: Callable[[], object]) -> None:
    with interruptible(1, stop) as pool:
        pool.submit(task)
        raise error


def test_an_interrupt_stops_the_tasks_under_way() -> None:
    stopped, ends = threading.Event(), []
    with pytest.raises(KeyboardInterrupt):
        ended_by(KeyboardInterrupt(), stopped.set, lambda: ends.append(stopped.wait()))
    assert ends == [True]


def test_another_error_waits_for_them() -> None:
    told, ends = threading.Event(), []
    with pytest.raises(LookupError):
        ended_by(LookupError(), told.set, lambda: ends.append(told.wait(0.05)))
    assert ends == [False]
