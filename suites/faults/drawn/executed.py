"""Executed lines of a subject: of the reference by a record of reach, of an engine by a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import msgspec

from kvproof.harness.isolation.handles import Handle
from kvproof.harness.isolation.registry import open_handle
from kvproof.harness.records.run_directory import store
from kvproof.harness.whole_engine.executed_lines import LINES, START
from kvproof.suites.faults.catalogue import engines
from kvproof.suites.faults.drawn.sample import Executed
from kvproof.suites.faults.planting import origin
from kvproof.suites.faults.reach import Reach
from kvproof.suites.framework.budgets import BUDGETS
from kvproof.suites.framework.suite import Suite
from kvproof.suites.runner import levels
from kvproof.suites.runner.replay import known_failures

TIMEOUT_S = 60.0
_INSTALLED = "site-packages"

_Lines: TypeAlias = Mapping[str, list[int]]
"""File -> lines."""


def of_reference(reach: Reach) -> list[Executed]:
    """Return the modules of the reference with the lines that any suite executes."""
    lines = defaultdict[str, set[int]](set)
    for suite in reach.suites.values():
        for module, executed in suite.lines.items():
            lines[module] |= set(executed)
    return [Executed(name, origin(name), frozenset(found)) for name, found in sorted(lines.items())]


def of_engine(target: str, kept: Path, said: Callable[[str], None]) -> list[Executed]:
    """Explore an engine's suites once at budget `pr` while its packages are traced.

    Its packages are those of its planted faults. `said` receives the name of each suite. The file
    `kept` has the lines of suites that an earlier call has explored. Raises TargetDied, UsageError.
    """
    found: dict[str, _Lines] = msgspec.json.decode(kept.read_bytes()) if kept.exists() else {}
    with open_handle(target) as handle, handle.prepared(START, {"packages": packages(target)}):
        known = known_failures(handle)
        for suite in levels.suites(handle, "full"):
            if suite.judged and suite.name not in found:
                said(suite.name)
                _explore(suite.knowing(known))
                found[suite.name] = _executed(handle)
                store(kept, msgspec.json.encode(found))
    return list(_modules(found))


def packages(target: str) -> list[str]:
    """Return the packages of an engine that have planted faults."""
    modules = {fault.module for fault in engines().values() if fault.target == target}
    return sorted({module.rpartition(".")[0] for module in modules})


def _explore(suite: Suite) -> None:
    if suite.explore(BUDGETS["pr"]).interrupted:
        raise KeyboardInterrupt


def _executed(handle: Handle) -> _Lines:
    """Return the lines that have run since the engine was opened."""
    found: _Lines = handle.run_job(LINES, {}, timeout=TIMEOUT_S)["lines"]
    return found


def _modules(by_suite: Mapping[str, _Lines]) -> Iterator[Executed]:
    lines = defaultdict[str, set[int]](set)
    for found in by_suite.values():
        for name, executed in found.items():
            lines[name] |= set(executed)
    for name, every in sorted(lines.items()):
        yield Executed(module_of(Path(name)), Path(name), frozenset(every))


def module_of(path: Path) -> str:
    """Return the dotted name of a file: below `site-packages`, else by the packages around it.

    A folder of an installed package may lack `__init__.py`.
    """
    _, installed, inside = str(path.with_suffix("")).rpartition(f"/{_INSTALLED}/")
    if installed:
        return inside.replace("/", ".")
    names, folder = [path.stem], path.parent
    while (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    return ".".join(names)
