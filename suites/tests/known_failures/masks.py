"""Plant a bug beside a known failure of the same property, search for it, keep its history.

`python -m kvproof.suites.tests.known_failures.masks [GLOB]` searches at budget `pr` with the known
failures excused, as a run does, and writes `masks/<property>.json` in the engine's room. On an
engine's own loop each mechanism has a bug of its own: histories are drawn until the known failure
occurs in one, the bug is planted in that history, and has to be reported. It lies with the finding.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from kvproof.harness.isolation.environments import package_of
from kvproof.harness.isolation.handles import Handle
from kvproof.harness.isolation.registry import open_handle
from kvproof.harness.oracle.violation import Violation
from kvproof.harness.reproduce import oplog
from kvproof.suites.faults.catalogue import PlantedFault, engines
from kvproof.suites.faults.planters import Live
from kvproof.suites.framework.budgets import BUDGETS
from kvproof.suites.framework.component_suite import (
    Arguments,
    ComponentSuite,
    Config,
    Counterexample,
    DealtConfig,
    History,
    Operation,
    counterexample,
)
from kvproof.suites.framework.evidence import log_of
from kvproof.suites.framework.failed import Failed
from kvproof.suites.framework.known import Known
from kvproof.suites.framework.rooms import FOLDER, rooms
from kvproof.suites.framework.shrink import without_needless
from kvproof.suites.framework.suite import Suite, on_target
from kvproof.suites.runner import levels
from kvproof.suites.runner.replay import known_failures
from kvproof.suites.tests.documents.newest import showing
from kvproof.suites.whole_engine.choices import Choices
from kvproof.suites.whole_engine.operations import operation
from kvproof.suites.whole_engine.strategies import SUITE, LoopHistories, traits_of

SECONDS = 300.0
SEEDS, OPERATIONS, CUT_S = 400, 50, 20.0
"""Of a search on an engine's own loop."""


class Mask(msgspec.Struct, frozen=True, kw_only=True):
    """A bug of an engine's own files, and the known failure that must not excuse it."""

    bug: PlantedFault
    target: str
    mechanism: str = ""
    """Empty: whichever the property has."""
    levels: dict[str, str | list[str]] = {}
    engine: dict[str, Any] = {}
    """Settings of the engine that the known failure needs."""
    folder: Path
    """Place of the history, in the engine's room."""

    @property
    def broken(self) -> str:
        """The property that both break."""
        return self.bug.property

    @property
    def name(self) -> str:
        """What a glob is compared with."""
        return " ".join(filter(None, (self.target, self.mechanism, self.broken)))

    def log(self) -> Path:
        """The history that shows it."""
        return self.folder / f"{self.broken}.json"

    def choose(self, drawn: LoopHistories, choices: Choices, number: int) -> DealtConfig:
        """Choose a configuration of its levels that has the settings."""
        dealt = drawn.config(choices, number, self.levels or None)
        dealt.config["engine"].update(self.engine)
        return dealt


def masks() -> list[Mask]:
    """Faults of engines with the property of a known failure, and the masks of bugs' records."""
    managers = (fault for fault in engines().values() if fault.suite != SUITE.name)
    faults = [fault for fault in managers if fault.property]
    return [
        *(Mask(bug=fault, target=fault.target, folder=_folder(fault.target)) for fault in faults),
        *(
            Mask(
                bug=engines()[mask.bug],
                target=str(showing(room, bug)),
                mechanism=bug.predicate,
                levels=mask.levels,
                engine=mask.engine,
                folder=room.finding(bug) / "masks",
            )
            for room in rooms()
            for bug in room.bugs
            for mask in bug.masks
        ),
    ]


def _folder(target: str) -> Path:
    return FOLDER / package_of(target.partition("==")[0]) / "masks"


def search(handle: Handle, mask: Mask) -> str:
    """Return the sentence of the failure; empty if the budget does not show it."""
    found = (_by_seeds if mask.mechanism else _at_budget)(handle, mask)
    if found is None:
        return ""
    mask.log().write_bytes(oplog.dump(log_of(found, mask.target)))
    return found.violation.sentence


def _at_budget(handle: Handle, mask: Mask) -> Counterexample | None:
    for suite in (each for each in levels.suites(handle, "full") if _judges(each, mask.broken)):
        knowing = suite.knowing(known_failures(handle))
        others = {prop.name for prop in (*suite.properties, *suite.beyond)} - {mask.broken}
        deadline = time.monotonic() + SECONDS
        with Live(handle).planted(mask.bug):
            seen = knowing.explore(BUDGETS["pr"], seed=1, tolerate=others, deadline=deadline)
        if seen.counterexample:
            return seen.counterexample
    return None


def _judges(suite: Suite, name: str) -> bool:
    return name in {prop.name for prop in suite.judged}


def _by_seeds(handle: Handle, mask: Mask) -> Counterexample | None:
    suite = on_target(SUITE, handle)._replace(known=known_failures(handle))
    drawn = LoopHistories(traits_of(suite))
    until = time.monotonic() + SECONDS
    for seed in range(SEEDS):
        if time.monotonic() > until:
            return None
        choices = drawn.choices(seed)
        history = _drawn(suite, mask.choose(drawn, choices, seed), choices)
        met = mask.mechanism in history.known
        found = met and _behind(handle, suite, mask, history, history.operations)
        if found:
            again = partial(_behind, handle, suite, mask, history)
            return without_needless(found, again, seconds=CUT_S)
    return None


def _drawn(suite: ComponentSuite, config: DealtConfig, choices: Choices) -> History:
    """Draw a history; one that has ended has no more operations."""
    history = History(suite, config)
    with suppress(Violation):
        history.open()
        for _ in range(OPERATIONS):
            history.apply(*operation(history.machine, choices))
        history.apply("drain", {})
    return history


def _behind(
    handle: Handle, suite: ComponentSuite, mask: Mask, drawn: History, kept: Sequence[Operation]
) -> Counterexample | None:
    """Return the bug's failure in a history that has the known one."""
    calls = [(each.verb, each.arguments) for each in kept]
    if not meets(suite, mask, drawn.config, calls):
        return None
    with Live(handle).planted(mask.bug):
        found = counterexample(suite, drawn.config, calls)
    own = found is not None and found.violation.property == mask.broken
    return found if own and found and found.history.recognise(found.violation) is None else None


def meets(
    suite: ComponentSuite, mask: Mask, config: Config, calls: Sequence[tuple[str, Arguments]]
) -> bool:
    """Tell whether a history has the known failure of a mask."""
    seen: set[str] = set()
    noting = [_noting(each, seen) if each.property == mask.broken else each for each in suite.known]
    counterexample(suite._replace(known=noting), config, calls)
    return mask.mechanism in seen


def _noting(known: Known, seen: set[str]) -> Known:
    def matches(failed: Failed) -> bool:
        found = known.matches(failed)
        seen.update({known.name} if found else ())
        return found

    return known._replace(matches=matches)


def main(arguments: list[str]) -> None:
    """Search for the bugs whose engine, mechanism or property fits a glob."""
    (pattern,) = arguments or ["*"]
    chosen = [mask for mask in masks() if fnmatchcase(mask.name, pattern)]
    if not chosen:
        sys.exit(f"there is no mask {pattern!r}\n  * searches for all")
    for target, group in groupby(chosen, lambda mask: mask.target):
        with open_handle(target) as handle:
            for mask in group:
                began = time.monotonic()
                found = search(handle, mask) or "NOT FOUND"
                took = time.monotonic() - began
                sys.stdout.write(f"{mask.name}: {took:.0f} s: {found}\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
