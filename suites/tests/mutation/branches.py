"""Branches of the control plane that the suites reach, alone and in pairs: `make branches`.

A branch is a line that can be followed by different ones, and each way counts. A pair is two ways
of different branches of one function. It is reached if both are taken in one operation of a history
and some property is checked in that operation. Pairs that exclude each other are counted as
possible too: the share is good for comparing two versions of the suites, not as a grade.

The record (`--output`) tells `kvproof faults --reach` which suites cannot find a fault.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import NamedTuple, TypeAlias

import msgspec

from kvproof.harness.isolation.registry import open_handle
from kvproof.suites.faults.reach import CORE, Reach, SuiteReach, digest
from kvproof.suites.framework.budgets import BUDGETS
from kvproof.suites.framework.suite import Suite
from kvproof.suites.runner import levels
from kvproof.suites.tests.mutation.executed_lines import (
    REFERENCE,
    ROOT,
    Arc,
    Function,
    Trace,
    processor_time,
)
from kvproof.suites.tests.mutation.possible import branches, functions

FOLDERS = ("cache", "core", "engine", "prefix", "states", "tiers")
"""Of the control plane: they decide who holds and computes what."""
Pair: TypeAlias = tuple[Arc, Arc]


class Judged(NamedTuple):
    """What operations with a checked property reached in one function."""

    arcs: set[Arc]
    pairs: set[Pair]


class Row(NamedTuple):
    """One module: ways and pairs, possible and reached."""

    module: str
    ways: int
    reached: int
    pairs: int
    met: int


def main() -> None:
    """Explore the suites with tracing, write the record, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", choices=("pr", "debug"), default="pr")
    parser.add_argument("--suites", default="", help="names with commas; all")
    parser.add_argument("--output", type=Path, help="where the record goes")
    parser.add_argument("--unreached", default="", help="modules whose unreached ways are printed")
    options = parser.parse_args()
    everything, found = Trace(), dict[str, SuiteReach]()
    only = set(options.suites.split(",")) - {""}
    for name, suite in _suites():
        if not only or name in only:
            _print(f"{name} ...")
            found[name] = _explore(suite, options.budget, everything)
            _print(f"{name}: {found[name].seconds:.0f} s of processor time")
            if options.output:
                reach = Reach(digest(), options.budget, found)
                options.output.write_bytes(msgspec.json.encode(reach))
    judged = _judged(everything)
    _print(table(judged), end="")
    for line in unreached(judged, filter(None, options.unreached.split(","))):
        _print(line)


def _print(text: str, end: str = "\n") -> None:
    sys.stdout.write(text + end)
    sys.stdout.flush()


def _suites() -> Iterator[tuple[str, Suite]]:
    with open_handle("reference") as handle:
        (core,) = levels.suites(handle, "core")
        yield CORE, core
        yield from ((suite.name, suite) for suite in levels.suites(handle, "full") if suite.judged)


def _explore(suite: Suite, budget: str, everything: Trace) -> SuiteReach:
    trace = Trace()
    with processor_time() as seconds, trace.running():
        seen = suite.explore(BUDGETS[budget])
    for function, arcs in trace.arcs.items():
        everything.arcs.setdefault(function, set()).update(arcs)
    for function, together in trace.judged.items():
        everything.judged.setdefault(function, set()).update(together)
    return SuiteReach(round(seconds(), 1), seen.test_cases, trace.lines())


def possible(module: str) -> dict[Function, set[Arc]]:
    """Return the functions of a module with branches."""
    path = ROOT / Path(*module.split(".")).with_suffix(".py")
    found = {
        Function(module, c.co_qualname, c.co_firstlineno): branches(c) for c in functions(path)
    }
    return {function: arcs for function, arcs in found.items() if arcs}


def pairs(arcs: Iterable[Arc]) -> set[Pair]:
    """Return all pairs of ways of different branches."""
    return {pair for pair in combinations(sorted(arcs), 2) if pair[0][0] != pair[1][0]}


def _judged(trace: Trace) -> dict[Function, Judged]:
    found = dict[Function, Judged]()
    for module in modules():
        for function, arcs in possible(module).items():
            together = {each & arcs for each in trace.judged.get(function, ())}
            met = {pair for each in together for pair in pairs(each)}
            found[function] = Judged(set().union(*together), met)
    return found


def modules() -> list[str]:
    """Return the modules of the control plane that the table lists."""
    paths = (path for folder in FOLDERS for path in sorted((REFERENCE / folder).glob("*.py")))
    return [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]


def rows(judged: Mapping[Function, Judged]) -> list[Row]:
    """Return one row for each module with branches."""
    found = []
    for module in modules():
        ways = possible(module)
        if ways:
            reached = [judged[function] for function in ways if function in judged]
            found.append(
                Row(
                    module,
                    sum(map(len, ways.values())),
                    sum(len(each.arcs) for each in reached),
                    sum(len(pairs(arcs)) for arcs in ways.values()),
                    sum(len(each.pairs) for each in reached),
                )
            )
    return found


def table(judged: Mapping[Function, Judged]) -> str:
    """Return the figures as Markdown, the sum last."""
    listed = rows(judged)
    columns = list(zip(*listed, strict=True))[1:]
    head = "| module | ways of branches | reached | pairs | reached |\n"
    head += "| --- | --- | --- | --- | --- |\n"
    total = Row("all", *map(sum, columns))  # type: ignore[arg-type]  # columns of counts
    return head + "".join(
        f"| `{row.module}` | {row.ways} | {row.reached} | {row.pairs} | {row.met} |\n"
        for row in [*listed, total]
    )


def unreached(judged: Mapping[Function, Judged], wanted: Iterable[str]) -> Iterator[str]:
    """Yield the ways, then the pairs of reached ways, that no judged operation took."""
    for module in wanted:
        for function, arcs in possible(module).items():
            have = judged.get(function, Judged(set(), set()))
            for first, last in sorted(arcs - have.arcs):
                yield f"{module}:{first}: {function.name} never goes to {_place(last)}"
            for one, other in sorted(pairs(have.arcs & arcs) - have.pairs):
                yield (
                    f"{module}:{one[0]}: {function.name} never goes to {_place(one[1])} and, from "
                    f"{other[0]}, to {_place(other[1])} in one operation"
                )


def _place(line: int) -> str:
    return "its end" if line < 0 else f"line {line}"


if __name__ == "__main__":
    main()
