"""Compare answers and states of histories with and without a change listed as unobservable.

`python -m kvproof.suites.faults.drawn.equal_histories --suites states --histories 10000` compares
each row of `unobservable.toml` in the reference; a seed draws the same operations in both processes
as long as the answers are equal. `--row N` takes one row, counted from 1.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from hashlib import blake2b
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from kvproof.suites.faults.catalogue import SUBJECT, PlantedFault
from kvproof.suites.faults.drawn.sample import Executed, changes
from kvproof.suites.faults.drawn.unobservable import Unobservable, load
from kvproof.suites.faults.planting import origin

if TYPE_CHECKING:  # nothing of the reference is imported before a change is planted in it
    from kvproof.harness.isolation.handles import Handle
    from kvproof.suites.framework.component_suite import ComponentSuite

HISTORIES = 10_000
"""Histories of each suite that are compared."""


class Difference(NamedTuple):
    """The first history of a suite that is not equal."""

    suite: str
    number: int
    """Place of the history in the suite, from 1 on."""


def rows() -> list[Unobservable]:
    """Return the listed changes of the reference."""
    return [row for row in load() if row.module.startswith(f"{SUBJECT}.")]


def fault_of(row: Unobservable) -> PlantedFault:
    """Return a listed change as a fault. Raises LookupError if the module no longer has it."""
    path = origin(row.module)
    lines = frozenset(range(1, len(path.read_text(encoding="utf-8").splitlines()) + 1))
    for fault in changes(Executed(row.module, path, lines), row.change, SUBJECT):
        if row.fits(fault):
            return fault
    raise LookupError(f"{row.module} has no place for {row.change!r} near {row.near!r}")


def histories(fault: PlantedFault | None, suite: str, count: int, seed: int) -> Iterator[str]:
    """Run histories of a suite in a new process, with a fault planted; yields a digest of each.

    Raises RuntimeError if the process fails.
    """
    numbers = ("--suites", suite, "--histories", str(count), "--seed", str(seed), "--digests")
    command = (sys.executable, "-m", __spec__.name, *numbers)
    with subprocess.Popen(  # noqa: S603 - this module
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(msgspec.json.encode(fault).decode())
        child.stdin.close()
        try:
            yield from (line.rstrip() for line in child.stdout)
        except GeneratorExit:  # the rest is not wanted
            child.kill()
            raise
    if child.returncode:
        raise RuntimeError(f"suite {suite}: the process ended with {child.returncode}")


def compare(
    fault: PlantedFault, suite: str, count: int, seed: int
) -> tuple[int, Difference | None]:
    """Return how many histories are equal, and the first one that is not."""
    sides = (histories(side, suite, count, seed) for side in (None, fault))
    for place, (before, after) in enumerate(zip_longest(*sides), 1):
        if before != after:
            return place - 1, Difference(suite, place)
    return count, None


# --- in the process of one side ---


class _Recorded:
    """A machine that keeps a digest of its answers, and of the states after them."""

    def __init__(self, machine: Any) -> None:
        self._machine, self._digest = machine, blake2b(digest_size=8)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._machine, name)

    def apply(self, verb: str, /, **arguments: Any) -> object:
        answer: object = self._machine.apply(verb, **arguments)
        seen = (verb, sorted(arguments.items()), str(answer), _state(self._machine))
        self._digest.update(repr(seen).encode())
        return answer

    def close(self) -> None:
        sys.stdout.write(f"{self._digest.hexdigest()}\n")
        sys.stdout.flush()
        close = getattr(self._machine, "close", None)
        if close:
            close()


def _state(machine: Any) -> object:
    """Return the inspection of a target, or the decisions and the cache of an engine."""
    if session := getattr(machine, "session", None):
        return session.state.inspected
    if engine := getattr(machine, "engine", None):
        from kvproof.suites.reference.engine.observer import trace

        return engine.decisions(), trace(engine.cache)
    return None


def _digests(fault: PlantedFault | None, name: str, count: int, seed: int) -> None:
    with _opened(fault) as handle:  # imports of the reference come after planting
        from hypothesis import settings

        from kvproof.suites.framework.budgets import BUDGETS, seeded
        from kvproof.suites.runner import levels

        (suite,) = (each for each in levels.suites(handle, "full") if each.name == name)
        budget = settings(seeded(BUDGETS["pr"], None), max_examples=count)
        component = suite.component._replace(machine=_recording(suite.component), processes=1)
        seen = suite._replace(component=component).explore(budget, seed=seed)
    if seen.violation or seen.died:
        sys.stdout.write(f"{seen.violation or seen.died}\n")


def _recording(suite: ComponentSuite) -> Any:
    return lambda config, coverage: _Recorded(suite.machine(config, coverage))


def _opened(fault: PlantedFault | None) -> AbstractContextManager[Handle]:
    """Open the reference in this process."""
    if fault:
        from kvproof.suites.faults.planters import AtImport

        return AtImport().planted(fault)
    from kvproof.harness.isolation.registry import OwnTargets, open_handle

    return open_handle(SUBJECT, options=OwnTargets(in_process=True))


def main(arguments: list[str] | None = None) -> int:
    """Compare, and print a line for each row and suite; returns 1 if a history differs."""
    parser = argparse.ArgumentParser(prog=__spec__.name, description=__doc__)
    parser.add_argument("--suites", default="cache,states,system", help="names, with commas")
    parser.add_argument("--row", type=int, default=0, help="of the reference's; 0: each")
    parser.add_argument("--histories", type=int, default=HISTORIES, help="of each suite")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--digests", action="store_true", help="of one side, for the other process")
    given = parser.parse_args(arguments)
    if given.digests:
        fault = msgspec.json.decode(sys.stdin.read(), type=PlantedFault | None)
        _digests(fault, given.suites, given.histories, given.seed)
        return 0
    chosen = rows()[given.row - 1 : given.row] if given.row else rows()
    pairs = [(row, suite) for row in chosen for suite in given.suites.split(",")]
    differ = [_said(row, suite, given.histories, given.seed) for row, suite in pairs]
    return int(any(differ))


def _said(row: Unobservable, suite: str, count: int, seed: int) -> bool:
    equal, difference = compare(fault_of(row), suite, count, seed)
    last = f", number {difference.number} is not" if difference else ""
    line = f"{row.module}: {row.change}: {suite}: {equal} histories are equal{last}\n"
    sys.stdout.write(line)
    sys.stdout.flush()
    return difference is not None


if __name__ == "__main__":
    sys.exit(main())
