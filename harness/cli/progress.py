"""Progress of a long command: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from kvproof.harness.cli.silence import left_to_a_display
from kvproof.reports.values.text import duration

Shown = Callable[[str, int, int], None]
"""Text, steps done, their total."""

MINUTE = 60.0
"""Seconds between two lines off a terminal."""


@contextmanager
def progress(console: Console, every: float = MINUTE) -> Iterator[Shown]:
    """Yield the function that shows progress; no other line shows that the command is at work.

    Off a terminal a new text is printed at once, and the state after every `every` seconds, also
    if nothing happened.
    """
    with (
        left_to_a_display(),
        _bar(console) if console.is_terminal else _lines(console, every) as show,
    ):
        yield show


@contextmanager
def _lines(console: Console, every: float) -> Iterator[Shown]:
    lines = _Lines(console, every)
    ticker = threading.Thread(target=lines.tick, daemon=True)
    ticker.start()
    try:
        yield lines.show
    finally:
        lines.ended.set()
        ticker.join()


@contextmanager
def _bar(console: Console) -> Iterator[Shown]:
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
               TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=console) as bars:
        task = bars.add_task("starting", total=None)
        yield lambda text, done, total: bars.update(
            task, description=text, completed=done, total=total
        )


class _Lines:
    """The state of the command, printed when its text changes and once a minute."""

    def __init__(self, console: Console, every: float) -> None:
        self._console, self._every = console, every
        self.ended = threading.Event()
        self._lock = threading.Lock()
        self._text, self._done, self._total = "", 0, 0
        self._first, self._begun = 0, time.monotonic()

    def show(self, text: str, done: int, total: int) -> None:
        """Take over the state; a new text is printed."""
        with self._lock:
            new = text != self._text
            self._text, self._done, self._total = text, done, total
            if new:
                self._first, self._begun = done, time.monotonic()
                self._print("")

    def tick(self) -> None:
        """Print the state after each interval, until the end."""
        while not self.ended.wait(self._every):
            with self._lock:
                if self._text:
                    self._print(self._pace())

    def _pace(self) -> str:
        """Time since this text began, and an estimate of the rest."""
        spent, steps = time.monotonic() - self._begun, self._done - self._first
        left = self._total - self._done
        rest = f", about {duration(spent / steps * left)} left" if steps > 0 < left else ""
        return f", after {duration(spent)}{rest}"

    def _print(self, pace: str) -> None:
        line = f"{self._text} ({self._done} of {self._total}{pace})"
        self._console.print(line, highlight=False, markup=False)
