"""Modules of the control plane that a test run never executes: it fails if there is one.

    make test ARGS="-p kvproof.suites.tests.executed"

A module is executed if one of its functions was called; a module without functions, if it was
imported. Every call of a function is traced, so the run takes about twice as long.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from inspect import CO_NEWLOCALS
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

REFERENCE = Path(__file__).resolve().parents[2] / "reference"
DATA_PLANE = ("model_runner/", "transfer/", "server/language/hugging_face")
"""Below `reference/`: moves or computes tensors, so it may need torch."""

_called: set[str] = set()
"""Files with a function that was called in this process."""
_everywhere: set[str] = set()
"""The same of all processes of the run."""


def control_plane() -> list[str]:
    """Return the files below `reference/` that are not of the data plane."""
    named = (path.relative_to(REFERENCE).as_posix() for path in REFERENCE.rglob("*.py"))
    return sorted(name for name in named if not name.startswith(DATA_PLANE))


def has_functions(name: str) -> bool:
    """Return whether a file below `reference/` defines a function or a method."""
    return any(map(_is_function, _inner(compile((REFERENCE / name).read_text(), name, "exec"))))


def _inner(code: CodeType) -> Iterator[CodeType]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _inner(each)


def _is_function(code: CodeType) -> bool:
    """A module, the body of a class and a comprehension run when a module is imported."""
    return bool(code.co_flags & CO_NEWLOCALS) and not code.co_name.startswith("<")


def missing(called: set[str]) -> list[str]:
    """Return the files of the control plane that define functions and had none called."""
    return [name for name in control_plane() if name not in called and has_functions(name)]


def _trace(frame: FrameType, event: str, argument: Any) -> None:
    del event, argument
    if _is_function(frame.f_code):
        _called.add(frame.f_code.co_filename)


def pytest_configure(config: pytest.Config) -> None:
    """Trace this process, whether it is a worker or the only one."""
    del config
    threading.settrace(_trace)
    sys.settrace(_trace)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand the files to the process that reports, and let the run fail if one is missing."""
    sys.settrace(None)
    found = {
        Path(name).relative_to(REFERENCE).as_posix()
        for name in _called
        if Path(name).is_relative_to(REFERENCE)
    }
    _everywhere.update(found)
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["executed"] = sorted(found)
    elif missing(_everywhere) and not session.exitstatus:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Collect the files of a worker of pytest-xdist; one that crashed has none."""
    _everywhere.update(getattr(node, "workeroutput", {}).get("executed", ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the number of executed modules, and the name of every other one."""
    lacking = missing(_everywhere)
    count = len(control_plane())
    terminalreporter.section("modules of the control plane")
    terminalreporter.line(f"{count - len(lacking)} of {count} executed")
    for name in lacking:
        terminalreporter.line(f"never executed: reference/{name}")
