"""Executed lines of a subject: of the reference by a record of reach, of an engine by a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from kvproof.harness.isolation.handles import Handle
from kvproof.harness.isolation.registry import open_handle
from kvproof.harness.whole_engine.executed_lines import LINES, START
from kvproof.suites.faults.catalogue import engines
from kvproof.suites.faults.drawn.sample import Executed
from kvproof.suites.faults.planting import origin
from kvproof.suites.faults.reach import Reach
from kvproof.suites.framework.budgets import BUDGETS
from kvproof.suites.runner import levels
from kvproof.suites.runner.replay import known_failures

TIMEOUT_S = 60.0


def of_reference(reach: Reach) -> list[Executed]:
    """Return the modules of the reference with the lines that any suite executes."""
    lines = defaultdict[str, set[int]](set)
    for suite in reach.suites.values():
        for module, executed in suite.lines.items():
            lines[module] |= set(executed)
    return [Executed(name, origin(name), frozenset(found)) for name, found in sorted(lines.items())]


def of_engine(target: str, said: Callable[[str], None]) -> list[Executed]:
    """Explore an engine's suites once at budget `pr` while its packages are traced.

    Its packages are those of its planted faults. `said` receives the name of each suite. Raises
    TargetDied, UsageError.
    """
    with open_handle(target) as handle, handle.prepared(START, {"packages": packages(target)}):
        known = known_failures(handle)
        for suite in levels.suites(handle, "full"):
            if suite.judged:
                said(suite.name)
                suite.knowing(known).explore(BUDGETS["pr"])
        return list(_modules(_executed(handle)))


def packages(target: str) -> list[str]:
    """Return the packages of an engine that have planted faults."""
    modules = {fault.module for fault in engines().values() if fault.target == target}
    return sorted({module.rpartition(".")[0] for module in modules})


def _executed(handle: Handle) -> Mapping[str, list[int]]:
    found: Mapping[str, list[int]] = handle.run_job(LINES, {}, timeout=TIMEOUT_S)["lines"]
    return found


def _modules(lines: Mapping[str, list[int]]) -> Iterator[Executed]:
    for name, executed in lines.items():
        path = Path(name)
        yield Executed(_module(path), path, frozenset(executed))


def _module(path: Path) -> str:
    """Return the dotted name of a file, by the packages around it."""
    names, folder = [path.stem], path.parent
    while (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    return ".".join(names)
