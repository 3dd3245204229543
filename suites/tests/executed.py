"""Modules of the control plane that a test run never executes: it fails if there is one.

    make test ARGS="-p kvproof.suites.tests.executed"

A module is executed if one of its functions was called in a process of the run; a module without
functions, if it was imported. While a module is loaded, a mark is put at the beginning of each
function. It costs some nanoseconds a call, and no test can switch it off.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest

REFERENCE = Path(__file__).resolve().parents[2] / "reference"
DATA_PLANE = ("model_runner/", "transfer/", "server/language/hugging_face")
"""Below `reference/`: moves or computes tensors, so it may need torch."""
MARK = "__kvproof_called__"

_called: dict[str, list[bool]] = {}
"""File -> whether one of its functions was called in this process."""
_everywhere: set[str] = set()
"""Names of the executed files of all processes of the run."""


def control_plane() -> list[str]:
    """Return the files below `reference/` that are not of the data plane."""
    named = (path.relative_to(REFERENCE).as_posix() for path in REFERENCE.rglob("*.py"))
    return sorted(name for name in named if not name.startswith(DATA_PLANE))


def has_functions(name: str) -> bool:
    """Return whether a file below `reference/` defines a function or a method."""
    tree = ast.parse((REFERENCE / name).read_text())
    return any(isinstance(node, _FUNCTIONS) for node in ast.walk(tree))


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def missing(called: set[str]) -> list[str]:
    """Return the files of the control plane that define functions and had none called."""
    return [name for name in control_plane() if name not in called and has_functions(name)]


def marked(tree: ast.Module) -> ast.Module:
    """Put `MARK[0] = True` at the beginning of each function, after its docstring."""
    for node in ast.walk(tree):
        if isinstance(node, _FUNCTIONS):
            (mark,) = ast.parse(f"{MARK}[0] = True").body
            after = ast.get_docstring(node, clean=False) is not None
            for each in ast.walk(mark):
                ast.copy_location(each, node)
            node.body.insert(int(after), mark)
    return tree


class _Loader(SourceFileLoader):
    """Loads a module with marks; nothing is written to `__pycache__`."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        tree = marked(ast.parse(self.get_data(path)))
        return compile(tree, path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__[MARK] = _called.setdefault(self.path, [False])
        super().exec_module(module)


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith("kvproof.reference"):
            return None
        others = (each for each in sys.meta_path if each is not self)
        specs = (each.find_spec(fullname, path, target) for each in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


def _found() -> Iterator[str]:
    for path, (called,) in _called.items():
        if called and Path(path).is_relative_to(REFERENCE):
            yield Path(path).relative_to(REFERENCE).as_posix()


def pytest_configure(config: pytest.Config) -> None:
    """Mark the modules that this process loads, whether it is a worker or the only one."""
    del config
    sys.meta_path.insert(0, _Finder())


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand the files to the process that reports, and let the run fail if one is missing."""
    found = sorted(_found())
    _everywhere.update(found)
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["executed"] = found
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
