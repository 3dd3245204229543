"""Plant a bug beside a known failure of the same property, search for it, keep its history.

`python -m kvproof.suites.tests.known_failures.masks [GLOB]` searches at budget `pr` with the known
failures excused, as a run does, and writes `histories/<engine>_<property>.json`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

from kvproof.harness.isolation.handles import Handle
from kvproof.harness.isolation.registry import open_handle
from kvproof.harness.reproduce import oplog
from kvproof.harness.whole_engine.planting import CLEAR, PLANT
from kvproof.suites.faults.catalogue import Fault, engines
from kvproof.suites.framework.budgets import BUDGETS
from kvproof.suites.framework.evidence import log_of
from kvproof.suites.framework.suite import Suite
from kvproof.suites.runner import levels
from kvproof.suites.runner.replay import known_failures

FOLDER = Path(__file__).parent
SECONDS = 300.0


def masks() -> list[Fault]:
    """Faults of engines with the property of a known failure."""
    return [fault for fault in engines().values() if fault.property]


def log_path(mask: Fault) -> Path:
    """The history that shows it."""
    return FOLDER / "histories" / f"{mask.target.partition('==')[0]}_{mask.property}.json"


@contextmanager
def planted(handle: Handle, fault: Fault) -> Iterator[None]:
    """Plant in the engine's process, and take it back."""
    bug = {"module": fault.module, "old": fault.old, "new": fault.new}
    handle.run_job(PLANT, bug, timeout=60)
    try:
        yield
    finally:
        handle.run_job(CLEAR, {}, timeout=60)


def search(handle: Handle, mask: Fault) -> str:
    """Return the sentence of the failure; empty if the budget does not show it."""
    suites = [suite for suite in levels.suites(handle, "full") if _judges(suite, mask.property)]
    for suite in suites:
        knowing = suite.knowing(known_failures(handle))
        others = {prop.name for prop in (*suite.properties, *suite.beyond)} - {mask.property}
        with planted(handle, mask):
            seen = knowing.explore(
                BUDGETS["pr"], seed=1, tolerate=others, deadline=time.monotonic() + SECONDS
            )
        if found := seen.counterexample:
            log_path(mask).write_bytes(oplog.dump(log_of(found, mask.target)))
            return found.violation.sentence
    return ""


def _judges(suite: Suite, name: str) -> bool:
    return name in {prop.name for prop in suite.judged}


def main(arguments: list[str]) -> None:
    """Search for the bugs whose engine or property fits a glob."""
    (pattern,) = arguments or ["*"]
    for mask in masks():
        if fnmatchcase(f"{mask.target} {mask.property}", pattern):
            began = time.monotonic()
            with open_handle(mask.target) as handle:
                sentence = search(handle, mask)
            found = sentence or "NOT FOUND"
            took = time.monotonic() - began
            sys.stdout.write(f"{mask.target} {mask.property}: {took:.0f} s: {found}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
