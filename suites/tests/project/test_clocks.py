"""No test says that something was fast: that depends on the machine, and on what else it does."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kvproof.suites.tests.project.test_layout import ROOT

TESTS = ROOT / "suites" / "tests"
CLOCKS = frozenset({
    "time.time", "time.monotonic", "time.perf_counter", "time.process_time", "time.thread_time",
    "os.times", "os.wait4", "resource.getrusage",
})  # fmt: skip
STOPPED = "a server that is stopped never answers; the bound is a hundred times the timeout"
ALLOWED = {"cache_server/test_remote_store_faults.py": STOPPED}
"""File -> the reason why it may bound a time from above."""


def bounds(code: str) -> Iterator[int]:
    """Lines that assert that a reading of a clock, or what was made of it, is small."""
    tree = ast.parse(code)
    read = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and reads_clock(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    read |= {f.name for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) and reads_clock(f)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            for compared in (each for each in ast.walk(node) if isinstance(each, ast.Compare)):
                if any(is_read(small, read) for small in smaller(compared)):
                    yield node.lineno


def smaller(compared: ast.Compare) -> Iterator[ast.expr]:
    """The side of each comparison that is to be the smaller one."""
    values = [compared.left, *compared.comparators]
    for left, how, right in zip(values, compared.ops, values[1:], strict=False):
        if isinstance(how, ast.Lt | ast.LtE):
            yield left
        elif isinstance(how, ast.Gt | ast.GtE):
            yield right


def is_read(value: ast.expr, read: set[str]) -> bool:
    names = {each.id for each in ast.walk(value) if isinstance(each, ast.Name)}
    return reads_clock(value) or bool(names & read)


def reads_clock(value: ast.AST) -> bool:
    calls = (each.func for each in ast.walk(value) if isinstance(each, ast.Call))
    return any(ast.unparse(function) in CLOCKS for function in calls)


def test_no_test_bounds_a_time_from_above() -> None:
    """Count instead: modules, lines, calls, waits; or step a clock of the test's own."""
    found = {
        path.relative_to(TESTS).as_posix(): lines
        for path in TESTS.rglob("*.py")
        if (lines := list(bounds(path.read_text(encoding="utf-8"))))
    }
    assert found.keys() == ALLOWED.keys(), found


def test_a_bound_is_found_and_waiting_is_none() -> None:
    begun = "import time\nbegun = time.monotonic()\n"
    assert list(bounds(begun + "assert time.monotonic() - begun < 5")) == [3]
    assert list(bounds(begun + "took = time.monotonic() - begun\nassert 5 >= took")) == [4]
    assert list(bounds("def took():\n  return time.time()\nassert took() < 2 * took()")) == [3]
    assert list(bounds(begun + "assert time.monotonic() - begun > 5")) == []
    assert list(bounds(begun + "assert found < 5")) == []
