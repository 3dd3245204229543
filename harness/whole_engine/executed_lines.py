"""Which lines of a subject's functions run: in this process, or as jobs in an engine's.

A function whose lines have all run is no longer traced, so that tracing soon costs little. From
Python 3.12 on `sys.monitoring` reports each line once, which costs next to nothing.
"""

from __future__ import annotations

import sys
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from inspect import CO_NEWLOCALS
from types import CodeType, FrameType
from typing import Any

START = f"{__name__}:start"
LINES = f"{__name__}:lines"
"""Jobs of any engine: trace from now on; which lines have run."""
_TOOL = 4
"""A number of `sys.monitoring` that no debugger, profiler or coverage takes."""


class ExecutedLines:
    """The lines of functions in some folders that have run inside `running`, by file."""

    def __init__(self, folders: tuple[str, ...]) -> None:
        """Trace the files whose paths begin with one of `folders`."""
        self._folders = folders
        self._left: dict[CodeType, set[int]] = {}
        """Function -> its lines that have not run."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Trace everything inside, in all threads that start there."""
        self.start()
        try:
            yield
        finally:
            if sys.version_info >= (3, 12):
                sys.monitoring.set_events(_TOOL, 0)
                sys.monitoring.free_tool_id(_TOOL)
            else:
                sys.settrace(None)
                threading.settrace(None)

    def start(self) -> None:
        """Trace from now on, in this thread and in new ones."""
        if sys.version_info >= (3, 12):
            events = sys.monitoring.events
            if sys.monitoring.get_tool(_TOOL) is None:
                sys.monitoring.use_tool_id(_TOOL, __name__)
            sys.monitoring.register_callback(_TOOL, events.PY_START, self._begun)
            sys.monitoring.register_callback(_TOOL, events.LINE, self._ran)
            sys.monitoring.set_events(_TOOL, events.PY_START | events.LINE)
            sys.monitoring.restart_events()
        else:
            threading.settrace(self._call)
            sys.settrace(self._call)

    def _begun(self, code: CodeType, offset: int) -> object:
        del offset
        return self._ran(code, code.co_firstlineno)

    def _ran(self, code: CodeType, line: int) -> object:
        if self._traced(code):
            self._left[code].discard(line)
        if sys.version_info >= (3, 12):
            return sys.monitoring.DISABLE
        return None

    def lines(self) -> dict[str, list[int]]:
        """Return file -> lines that have run."""
        found = defaultdict[str, set[int]](set)
        for code, left in list(self._left.items()):
            found[code.co_filename] |= _lines(code) - left
        return {path: sorted(lines) for path, lines in sorted(found.items())}

    def _call(self, frame: FrameType, event: str, argument: object) -> Any:
        del event, argument
        code = frame.f_code
        if not (code.co_filename.startswith(self._folders) and self._traced(code)):
            return None
        self._left[code].discard(code.co_firstlineno)
        return self._line if self._left[code] else None

    def _traced(self, code: CodeType) -> bool:
        if code not in self._left:
            if not (code.co_flags & CO_NEWLOCALS and code.co_filename.startswith(self._folders)):
                return False
            self._left[code] = _lines(code)
        return True

    def _line(self, frame: FrameType, event: str, argument: object) -> Any:
        del argument
        if event == "line":
            self._left[frame.f_code].discard(frame.f_lineno)
        return self._line


def _lines(code: CodeType) -> set[int]:
    return {line for _, _, line in code.co_lines() if line}


_TRACES: list[ExecutedLines] = []


def start(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A job of any engine: trace the functions of its packages `packages` from now on."""
    specs = [find_spec(name) for name in arguments["packages"]]
    places = [place for spec in specs if spec for place in spec.submodule_search_locations or ()]
    _TRACES[:] = [ExecutedLines(tuple(f"{place}/" for place in places))]
    _TRACES[0].start()
    return {}


def lines(_: Mapping[str, Any]) -> dict[str, Any]:
    """A job: the lines that have run in this process, by file."""
    return {"lines": _TRACES[0].lines()}
