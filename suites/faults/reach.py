"""Which lines of a subject each suite executes: the others cannot find a fault there.

`trace` makes the record. Budget `pr` draws the same histories in every run. So a suite that never
executes the changed lines draws and judges the same with the fault as without it. A record of some
of the histories leaves out a few suites more.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from hashlib import sha256
from inspect import CO_NEWLOCALS
from pathlib import Path
from types import CodeType

import msgspec

from kvproof.harness.errors import UsageError
from kvproof.suites.faults.planting import Change, origin

PACKAGES = ("reference", "harness", "suites")
"""Below `kvproof`: a change in one of them makes a record old. Tests are no part of it."""
CORE = "cache, level core"


class SuiteReach(msgspec.Struct, frozen=True):
    """One exploration of a suite on the subject as it is."""

    seconds: float
    """Time with the tracing: of the processor, or, for an engine, of the clock."""
    test_cases: int
    lines: dict[str, list[int]]
    """Module, of the reference below `kvproof` -> lines executed in functions."""


class Reach(msgspec.Struct, frozen=True):
    """All suites of the level `full`, and the suite `cache` of the level `core`."""

    digest: str
    budget: str
    suites: dict[str, SuiteReach]
    histories: int = 0
    """Histories of each suite that were traced; 0: all of the budget."""
    paths: dict[str, str] = {}
    """Module of an engine -> its file."""

    def may_find(self, change: Change, suite: str) -> bool:
        """Whether the suite executes a changed line; lines outside of functions always count."""
        reach = self.suites.get(suite)
        path = self.path(change.module)
        lines = changed_lines(change, path)
        if reach is None or lines & outside_functions(path):
            return True
        return not lines.isdisjoint(reach.lines.get(change.module, ()))

    def path(self, module: str) -> Path:
        """Return the file of a module."""
        return Path(self.paths[module]) if module in self.paths else origin(module)


def changed_lines(change: Change, path: Path) -> set[int]:
    """Return the lines of the statements, or of their heads, that a change replaces a part of."""
    source = path.read_text(encoding="utf-8")
    first = source[: source.index(change.old)].count("\n") + 1
    texts = enumerate(change.old.split("\n"), first)
    changed = {number for number, text in texts if text.strip()}
    found = set[int]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
            last = body[0].lineno - 1 if body else node.end_lineno or node.lineno
            lines = set(range(first, max(node.lineno, last) + 1))
            found |= lines if lines & changed else set()
    return found


def outside_functions(path: Path) -> set[int]:
    """Return the lines that run when a module is imported: its own, and those of its classes."""
    codes = [compile(path.read_text(encoding="utf-8"), str(path), "exec")]
    for code in codes:
        inner = (each for each in code.co_consts if isinstance(each, CodeType))
        codes += [each for each in inner if not each.co_flags & CO_NEWLOCALS]
    return {line for code in codes for _, _, line in code.co_lines() if line}


def digest() -> str:
    """Return a digest of the code that a record depends on."""
    found = sha256()
    for path in _files():
        found.update(path.read_bytes())
    return found.hexdigest()


def _files() -> Iterable[Path]:
    root = Path(__file__).parents[2]
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).parts
            if "tests" not in parts and "faults" not in parts:
                yield path


def write(path: Path, reach: Reach) -> None:
    """Write a record."""
    path.write_bytes(msgspec.json.encode(reach))


def load(path: Path, budget: str) -> Reach:
    """Read a record. Raises UsageError for another file, another budget, or other code."""
    again = f"python -m kvproof.suites.faults.trace {path}"
    try:
        reach = msgspec.json.decode(path.read_bytes(), type=Reach)
    except OSError as error:
        raise UsageError(f"--reach {path} cannot be read: {error.strerror}", again) from None
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise UsageError(f"--reach {path} is no record of executed lines: {error}", again) from None
    if reach.budget != budget:
        raise UsageError(f"--reach {path} is of budget {reach.budget!r}, not {budget!r}", again)
    if reach.digest != digest():
        raise UsageError(f"--reach {path} is of other code than this", again)
    return reach
