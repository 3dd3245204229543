"""`kvproof certify`, and `kvproof certificate verify`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import msgspec
from rich.markup import escape

from kvproof.harness.cli.actions import conformance
from kvproof.harness.cli.output import print_text, standard_output, table_of
from kvproof.harness.cli.runs import new_directory
from kvproof.harness.errors import Exit, TargetDied, UsageError
from kvproof.harness.isolation import build_identity
from kvproof.harness.isolation.environments import distribution_of
from kvproof.harness.isolation.registry import OwnTargets, open_handle
from kvproof.harness.records.run_directory import read_run, store
from kvproof.suites.specification.certificate import Certificate, exit_code, issue
from kvproof.suites.specification.classes import CLASSES
from kvproof.suites.specification.verification import (
    differences,
    own_problems,
    read,
    record_problems,
)

_SHOWN = ("fail", "inconclusive", "known_failure", "engine_failure")


def certify(
    specs: Sequence[str], name: str, *, file: Path, output: Path | None, own: OwnTargets
) -> int:
    """Judge a target by the suites of a class and write the certificate; returns the exit code.

    Raises UsageError.
    """
    if len(specs) != 1:
        raise UsageError(f"{', '.join(specs)}: {len(specs)} targets", "a certificate is of one")
    build = _build(specs[0], own)
    folder = output or new_directory("run")
    _judge(specs[0], name, folder, own)
    made = issue(read_run(folder), specs[0], CLASSES[name], build)
    data = msgspec.json.format(msgspec.json.encode(made), indent=1) + b"\n"
    store(file, data, hint="name another file with --certificate")
    _print(made)
    print_text(f"Certificate: {file}")
    return exit_code(made)


def _judge(target: str, name: str, folder: Path, own: OwnTargets) -> None:
    level = CLASSES[name].level
    conformance.run([target], budget="pr", level=level, seed=None, output=folder, own=own)


def _build(target: str, own: OwnTargets) -> dict[str, str]:
    given = {"package": distribution_of(target.partition("==")[0])}
    with open_handle(target, options=own) as handle:
        given["factory"] = handle.factory
        try:
            found = handle.run_job(build_identity.JOB, given, timeout=build_identity.TIMEOUT_S)
        except TargetDied:  # its verdict comes with the run
            found = {}
    return cast("dict[str, str]", found)


def _print(made: Certificate) -> None:
    table = table_of("rule", "", "outcome", "")
    for each in made.rules:
        if each.outcome in _SHOWN:
            broken = [p for p in each.properties if p.verdict not in ("pass", "unsupported")]
            words = "; ".join(f"{p.property}: {p.reason}" for p in broken)
            table.add_row(*map(escape, (each.rule, each.kind, each.outcome, words)))
    if table.rows:
        standard_output().print(table)
    print_text(_sentence(made))


def _sentence(made: Certificate) -> str:
    """Return the outcome with its figures."""
    counts = []
    for kind in ("core", "extended"):
        claimed = [r for r in made.rules if r.kind == kind and r.outcome != "not_claimed"]
        passed = sum(each.outcome == "pass" for each in claimed)
        counts.append(f"{passed} of {len(claimed)} {kind} rules pass")
    counts += _named(made, "engine_failure", "failing by the engine itself")
    counts += _named(made, "not_claimed", "not claimed")
    power = (f"{each.found} of {each.planted} in {each.subject}" for each in made.power)
    return (
        f"{made.outcome.upper()}  {made.target}, class {made.conformance_class}, specification "
        f"{made.specification}: {', '.join(counts)}; planted faults found: {', '.join(power)}"
    )


def _named(made: Certificate, outcome: str, words: str) -> list[str]:
    names = [r.rule for r in made.rules if r.kind == "core" and r.outcome == outcome]
    return [f"{words}: {' '.join(names)}"] if names else []


def verify(file: Path, *, run: Path | None, repeat: bool) -> int:
    """Print what contradicts a certificate; returns the exit code. Raises UsageError."""
    given = read(file)
    problems = list(own_problems(given))
    checked = ["the specification"]
    if run is not None and not problems:
        problems += record_problems(given, read_run(run))
        checked.append(f"{len(given.records)} records")
    if repeat and not problems:
        folder = new_directory("run")
        options = given.config.get("connector_options")  # of a file that may come from others
        texts = tuple(map(str, options)) if isinstance(options, list) else ()
        _judge(given.target, given.conformance_class, folder, OwnTargets(connector_options=texts))
        problems += differences(given, read_run(folder))
        checked.append("a run of the same seeds")
    return _concluded(file, given, problems, checked)


def _concluded(
    file: Path, given: Certificate, problems: Sequence[str], checked: Sequence[str]
) -> int:
    for problem in problems:
        print_text(f"{file}: {problem}")
    verdict = f"{len(problems)} contradictions" if problems else f"holds by {', '.join(checked)}"
    print_text(f"{file}: {_sentence(given)}")
    print_text(f"{file}: {verdict}")
    return Exit.FAILURE if problems else Exit.PASS
