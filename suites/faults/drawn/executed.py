"""Executed lines of a subject: a record of reach, kept until the subject or kvproof changes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias

from hypothesis import settings

from kvproof.harness.errors import UsageError
from kvproof.harness.isolation.environments import home
from kvproof.harness.isolation.handles import Handle
from kvproof.harness.isolation.registry import open_handle
from kvproof.harness.whole_engine.executed_lines import FILES, LINES, START
from kvproof.suites.faults.catalogue import SUBJECT, engines
from kvproof.suites.faults.drawn.sample import Executed
from kvproof.suites.faults.judge import search_of
from kvproof.suites.faults.reach import Reach, SuiteReach, digest, load, write
from kvproof.suites.faults.trace import record
from kvproof.suites.framework.budgets import BUDGETS
from kvproof.suites.framework.suite import Suite
from kvproof.suites.runner import levels
from kvproof.suites.runner.replay import known_failures

HISTORIES = 50
"""Histories of each suite that are traced: a quarter of budget `pr`."""
TIMEOUT_S = 60.0
_INSTALLED = "site-packages"
_PART = ".part"

Begun: TypeAlias = Callable[[str], None]
"""Receives the name of a suite before it is explored."""


def recorded(target: str, begun: Begun) -> Path:
    """Return a record of the lines that suites execute in the first histories of budget `pr`.

    It is kept for the next sample. Raises TargetDied, UsageError.
    """
    kept = home() / "executed" / f"{target}-{_key(target)}.json"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        part = kept.with_suffix(_PART)
        if target == SUBJECT:
            record(part, begun=begun, histories=HISTORIES)
        else:
            _record_engine(target, part, begun)
        part.rename(kept)
    return kept


def modules(reach: Reach) -> list[Executed]:
    """Return the modules of a record with the lines that any suite executes."""
    lines = defaultdict[str, set[int]](set)
    for suite in reach.suites.values():
        for module, executed in suite.lines.items():
            lines[module] |= set(executed)
    return [
        Executed(name, reach.path(name), frozenset(each)) for name, each in sorted(lines.items())
    ]


def packages(target: str) -> list[str]:
    """Return the packages of an engine that have planted faults."""
    found = {fault.module for fault in engines().values() if fault.target == target}
    return sorted({module.rpartition(".")[0] for module in found})


def _key(target: str) -> str:
    """Return a digest of the code that a record depends on."""
    subject = ""
    if target != SUBJECT:
        with open_handle(target) as handle:
            subject = handle.run_job(FILES, _traced(target), timeout=TIMEOUT_S)["digest"]
    return sha256(f"{HISTORIES} {digest()} {subject}".encode()).hexdigest()[:16]


def _traced(target: str) -> dict[str, Any]:
    return {"packages": packages(target)}


def _record_engine(target: str, path: Path, begun: Begun) -> None:
    """Explore an engine's suites with tracing, and write the record after each.

    Its packages are those of its planted faults.
    """
    reach = load(path, "pr") if path.exists() else Reach(digest(), "pr", {}, HISTORIES)
    with open_handle(target) as handle, handle.prepared(START, _traced(target)):
        known = known_failures(handle)
        for suite in levels.suites(handle, "full"):
            if suite.judged and suite.name not in reach.suites:
                begun(suite.name)
                found, paths = _explored(suite.knowing(known), handle)
                reach.suites[suite.name] = found
                reach.paths.update(paths)
                write(path, reach)


def _explored(suite: Suite, handle: Handle) -> tuple[SuiteReach, dict[str, str]]:
    started = time.monotonic()
    seen = search_of(suite)(suite, settings(BUDGETS["pr"], max_examples=HISTORIES))
    if seen.interrupted:
        raise KeyboardInterrupt
    if failed := seen.broken or seen.died or seen.violation:
        raise UsageError(
            f"suite {suite.name} fails before a fault is planted: {failed}",
            "kvproof run with this target shows the history; its known failures are expected",
        )
    lines = handle.run_job(LINES, {}, timeout=TIMEOUT_S)["lines"]
    paths = {module_of(Path(path)): path for path in lines}
    by_module = {name: lines[path] for name, path in paths.items()}
    return SuiteReach(round(time.monotonic() - started, 1), seen.test_cases, by_module), paths


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
