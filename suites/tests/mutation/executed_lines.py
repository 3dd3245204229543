"""Trace the reference while suites explore it: its lines, and what happens in one operation."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple, TypeAlias
from unittest.mock import patch

from kvproof.suites.framework.component_suite import History

ROOT = Path(__file__).resolve().parents[3]
REFERENCE = ROOT / "reference"

Arc: TypeAlias = tuple[int, int]
"""From line to line of one function; EXIT: it returns."""
EXIT = -1


class Function(NamedTuple):
    """A function below `reference/`."""

    module: str
    name: str
    line: int


class Trace:
    """What has been executed since it was made."""

    def __init__(self) -> None:
        self.arcs: dict[Function, set[Arc]] = {}
        self.judged: dict[Function, set[frozenset[Arc]]] = {}
        """The arcs of a function in one operation in which some property was checked."""
        self._now: dict[int, set[Arc]] = {}
        """The arcs of the current operation, by code."""
        self._functions: dict[int, Function] = {}
        self._prefix = f"{REFERENCE}/"

    @contextmanager
    def running(self) -> Iterator[None]:
        """Trace everything inside, and take every operation of a history for itself."""
        apply = History.apply

        def followed(history: History, verb: str, arguments: Mapping[str, Any]) -> object:
            self._end(judged=False)
            before = history.coverage.checks.total()
            answer = apply(history, verb, arguments)
            self._end(judged=history.coverage.checks.total() > before)
            return answer

        threading.settrace(self._call)
        sys.settrace(self._call)
        try:
            with patch.object(History, "apply", followed):
                yield
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]  # None is allowed, says its page
            self._end(judged=False)

    def lines(self) -> dict[str, list[int]]:
        """Return module -> executed lines."""
        found: dict[str, set[int]] = {}
        for function, arcs in self.arcs.items():
            ends = {line for arc in arcs for line in arc if line != EXIT}
            found.setdefault(function.module, set()).update(ends)
        return {module: sorted(lines) for module, lines in sorted(found.items())}

    def _end(self, *, judged: bool) -> None:
        for code, arcs in self._now.items():
            if arcs:
                function = self._functions[code]
                self.arcs.setdefault(function, set()).update(arcs)
                if judged:
                    self.judged.setdefault(function, set()).add(frozenset(arcs))
                self._now[code] = set()

    def _call(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        del event, argument
        code = frame.f_code
        if not code.co_filename.startswith(self._prefix):
            return None
        if id(code) not in self._functions:
            self._functions[id(code)] = _function(code)
        return _line(self._now.setdefault(id(code), set()), code.co_firstlineno)


def _line(arcs: set[Arc], first: int) -> Callable[..., Any]:
    """Return the tracer of one call; a function begins at its `def`."""
    last = first

    def line(frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
        del argument
        nonlocal last
        if event == "line":
            arcs.add((last, frame.f_lineno))
            last = frame.f_lineno
        elif event == "return":
            arcs.add((last, EXIT))
        return line

    return line


def _function(code: CodeType) -> Function:
    path = Path(code.co_filename).relative_to(ROOT).with_suffix("")
    return Function(".".join(path.parts), code.co_qualname, code.co_firstlineno)


@contextmanager
def processor_time() -> Iterator[Callable[[], float]]:
    """Give the processor time since here."""
    begun = time.process_time()
    yield lambda: time.process_time() - begun
