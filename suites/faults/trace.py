"""Record which lines of the reference each suite executes, for `kvproof faults --reach`.

`python -m kvproof.suites.faults.trace reach.json`, at budget `pr`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from hypothesis import settings

from kvproof.harness.errors import UsageError
from kvproof.harness.isolation.registry import open_handle
from kvproof.harness.whole_engine.executed_lines import ExecutedLines
from kvproof.suites.faults.reach import CORE, Reach, SuiteReach, digest, load, write
from kvproof.suites.framework.budgets import BUDGETS
from kvproof.suites.framework.suite import Suite
from kvproof.suites.runner import levels

_ROOT = Path(__file__).resolve().parents[2]


def main(path: Path) -> None:
    """Explore the suites with tracing, and write the record after each."""

    def said(name: str, reach: SuiteReach) -> None:
        sys.stdout.write(f"{name}: {reach.seconds:.0f} s of processor time\n")
        sys.stdout.flush()

    record(path, said)


def record(
    path: Path,
    said: Callable[[str, SuiteReach], None] = lambda *_: None,
    *,
    begun: Callable[[str], None] = lambda _: None,
    histories: int | None = None,
) -> None:
    """Explore the suites with tracing, and write the record after each.

    `begun` receives the name of a suite before, `said` its lines after it is explored. `histories`
    of each suite are traced; None: all of budget `pr`. Suites that a record of the same code has
    already are not explored again.
    """
    found, budget = _earlier(path), BUDGETS["pr"]
    if histories is not None:
        budget = settings(budget, max_examples=histories)
    for name, suite in _suites():
        if name in found:
            continue
        begun(name)
        found[name] = traced(suite, budget)
        said(name, found[name])
        write(path, Reach(digest(), "pr", found, histories or 0))


def _earlier(path: Path) -> dict[str, SuiteReach]:
    try:
        return load(path, "pr").suites
    except UsageError:  # none, or of other code
        return {}


def traced(suite: Suite, budget: settings) -> SuiteReach:
    """Explore one suite."""
    trace, begun = ExecutedLines((f"{_ROOT / 'reference'}/",)), time.process_time()
    with trace.running():
        seen = suite.explore(budget)
    if seen.interrupted:
        raise KeyboardInterrupt
    return SuiteReach(round(time.process_time() - begun, 1), seen.test_cases, by_module(trace))


def by_module(trace: ExecutedLines) -> dict[str, list[int]]:
    """Return module below `kvproof` -> executed lines."""
    files = {Path(path).relative_to(_ROOT): lines for path, lines in trace.taken().items()}
    return {".".join(path.with_suffix("").parts): lines for path, lines in files.items()}


def _suites() -> Iterator[tuple[str, Suite]]:
    with open_handle("reference") as handle:
        (core,) = levels.suites(handle, "core")
        yield CORE, core
        yield from ((suite.name, suite) for suite in levels.suites(handle, "full") if suite.judged)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
