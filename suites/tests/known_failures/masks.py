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

import msgspec
import tomllib

from kvproof.harness.isolation.handles import Handle
from kvproof.harness.isolation.registry import open_handle
from kvproof.harness.reproduce import oplog
from kvproof.suites.framework.budgets import BUDGETS
from kvproof.suites.framework.evidence import log_of
from kvproof.suites.framework.suite import Suite
from kvproof.suites.runner import levels
from kvproof.suites.runner.replay import known_failures

FOLDER = Path(__file__).parent
JOB = "kvproof.harness.whole_engine.planting"
SECONDS = 300.0


class Mask(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Replace `old`, which occurs once in a module of the engine, by `new`."""

    engine: str
    property: str
    story: str
    module: str
    old: str
    new: str

    def log(self) -> Path:
        """The history that shows it."""
        return FOLDER / "histories" / f"{self.engine.partition('==')[0]}_{self.property}.json"


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    bug: list[Mask]


def masks() -> list[Mask]:
    text = (FOLDER / "masks.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), _File).bug


@contextmanager
def planted(handle: Handle, mask: Mask) -> Iterator[None]:
    """Plant in the engine's process, and take it back."""
    bug = {"module": mask.module, "old": mask.old, "new": mask.new}
    handle.run_job(f"{JOB}:plant", bug, timeout=60)
    try:
        yield
    finally:
        handle.run_job(f"{JOB}:clear", {}, timeout=60)


def search(handle: Handle, mask: Mask) -> str:
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
            mask.log().write_bytes(oplog.dump(log_of(found, mask.engine)))
            return found.violation.sentence
    return ""


def _judges(suite: Suite, name: str) -> bool:
    return name in {prop.name for prop in suite.judged}


def main(arguments: list[str]) -> None:
    """Search for the bugs whose engine or property fits a glob."""
    (pattern,) = arguments or ["*"]
    for mask in masks():
        if fnmatchcase(f"{mask.engine} {mask.property}", pattern):
            began = time.monotonic()
            with open_handle(mask.engine) as handle:
                sentence = search(handle, mask)
            found = sentence or "NOT FOUND"
            took = time.monotonic() - began
            sys.stdout.write(f"{mask.engine} {mask.property}: {took:.0f} s: {found}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
