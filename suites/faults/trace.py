"""Record which lines of the reference each suite executes, for `kvproof faults --reach`.

`python -m kvproof.suites.faults.trace reach.json`, at budget `pr`.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import msgspec
from hypothesis import settings

from kvproof.harness.isolation.registry import open_handle
from kvproof.suites.faults.reach import CORE, Reach, SuiteReach, digest
from kvproof.suites.framework.budgets import BUDGETS
from kvproof.suites.framework.suite import Suite
from kvproof.suites.runner import levels

_ROOT = Path(__file__).resolve().parents[2]
_REFERENCE = f"{_ROOT / 'reference'}/"


class Trace:
    """The lines of the reference that have been executed inside `running`."""

    def __init__(self) -> None:
        self._lines = defaultdict[CodeType, set[int]](set)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Trace everything inside, in all threads."""
        threading.settrace(self._call)
        sys.settrace(self._call)
        try:
            yield
        finally:
            sys.settrace(None)
            threading.settrace(None)

    def lines(self) -> dict[str, list[int]]:
        """Return module below `kvproof` -> executed lines."""
        found = defaultdict[str, set[int]](set)
        for code, lines in self._lines.items():
            path = Path(code.co_filename).relative_to(_ROOT).with_suffix("")
            found[".".join(path.parts)] |= lines
        return {module: sorted(lines) for module, lines in sorted(found.items())}

    def _call(self, frame: FrameType, event: str, argument: object) -> Any:
        del event, argument
        code = frame.f_code
        if not code.co_filename.startswith(_REFERENCE):
            return None
        lines = self._lines[code]
        lines.add(code.co_firstlineno)

        def line(frame: FrameType, event: str, argument: object) -> Any:
            del argument
            if event == "line":
                lines.add(frame.f_lineno)
            return line

        return line


def main(path: Path) -> None:
    """Explore the suites with tracing, and write the record after each."""
    found = dict[str, SuiteReach]()
    for name, suite in _suites():
        found[name] = traced(suite, BUDGETS["pr"])
        sys.stdout.write(f"{name}: {found[name].seconds:.0f} s of processor time\n")
        path.write_bytes(msgspec.json.encode(Reach(digest(), "pr", found)))


def traced(suite: Suite, budget: settings) -> SuiteReach:
    """Explore one suite."""
    trace, begun = Trace(), time.process_time()
    with trace.running():
        seen = suite.explore(budget)
    return SuiteReach(round(time.process_time() - begun, 1), seen.test_cases, trace.lines())


def _suites() -> Iterator[tuple[str, Suite]]:
    with open_handle("reference") as handle:
        (core,) = levels.suites(handle, "core")
        yield CORE, core
        yield from ((suite.name, suite) for suite in levels.suites(handle, "full") if suite.judged)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
