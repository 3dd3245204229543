"""Certificates: what a target keeps of a conformance class, from the records of one whole run."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, get_args

import msgspec

from kvproof.harness.errors import Exit, UsageError
from kvproof.harness.isolation.connected import divided
from kvproof.harness.isolation.environments import package_of
from kvproof.harness.records.events import (
    Exercised,
    Failure,
    PropertyVerdict,
    TargetConcluded,
    TargetStarted,
)
from kvproof.harness.records.run_directory import Run
from kvproof.suites.faults.catalogue import HERE, ROOMS, SUBJECT, PlantedFault, blind, engines
from kvproof.suites.specification.classes import VERSION, ConformanceClass
from kvproof.suites.specification.rules import RULES

FORMAT: Final = "kvproof-certificate/1"
VERDICTS = "verdicts.jsonl"
BUDGETS = ("pr", "nightly")
"""Budgets that a certificate may stand on."""
LEVELS = ("core", "full")

T = TypeVar("T")
RuleOutcome = Literal[
    "fail", "inconclusive", "known_failure", "engine_failure", "pass", "not_claimed"
]
"""Worst first; `not_claimed`: the profile of the target claims none of it.

`engine_failure`: of a connector's certificate; known failures of the engine, with any connector."""
Outcome = Literal["conformant", "partially conformant", "inconclusive", "not conformant"]
_OUTCOMES: dict[str, RuleOutcome] = {
    "fail": "fail",
    "inconclusive": "inconclusive",
    "expected_failure": "known_failure",
    "pass": "pass",
    "unsupported": "not_claimed",
}


class Judged(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One property, as the run judged it."""

    suite: str
    property: str
    verdict: str
    reason: str = ""
    checks: int = 0
    situations: dict[str, int] = {}
    """Situation that it needs -> occurrences."""
    of_engine: bool = False
    """Whether a connector is judged, and only known failures of the engine itself were met."""


class RuleVerdict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rule of the class."""

    rule: str
    sentence: str
    kind: Literal["core", "extended"]
    outcome: RuleOutcome
    properties: list[Judged]


class Power(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Planted faults that break a rule of the class, from a recorded run of the same suites."""

    subject: str
    """The reference, or the engine in whose own files they were planted."""
    planted: int
    found: int
    record: str
    """SHA-256 of the recorded verdicts."""


class Certificate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    format: Literal["kvproof-certificate/1"] = FORMAT
    specification: str
    conformance_class: str
    outcome: Outcome
    target: str
    engine: str
    version: str
    build: dict[str, str]
    """Facts of the build: see `harness.isolation.build_identity`."""
    rules: list[RuleVerdict]
    known_failures: list[str]
    """Properties with a known failure, with its reason."""
    not_claimed: dict[str, str]
    """Capability that the profile does not claim -> its reason."""
    power: list[Power]
    kvproof: str
    started: str
    """ISO 8601, UTC."""
    command: list[str]
    config: dict[str, Any]
    seed: int | None
    """Seed of the histories; None: the budget's own, which draws the same every time."""
    histories: dict[str, int]
    """Suite -> histories."""
    machine: dict[str, str]
    records: dict[str, str]
    """File of the run's directory -> its SHA-256."""


def issue(run: Run, target: str, wanted: ConformanceClass, build: Mapping[str, str]) -> Certificate:
    """Return the certificate of a target for a class, by the records of a run.

    Raises UsageError for a run without the whole target, or of a smaller budget or level.
    """
    started = _started(run, target, wanted)
    rules = _rules(run, target, wanted)
    manifest = run.manifest
    return Certificate(
        specification=VERSION,
        conformance_class=wanted.name,
        outcome=outcome(rules),
        target=target,
        engine=started.engine,
        version=started.version,
        build=dict(build),
        rules=rules,
        known_failures=list(dict.fromkeys(_known(rules))),
        not_claimed=_not_claimed(started),
        power=_power(wanted, target.partition("==")[0]),
        kvproof=version("kvproof"),
        started=manifest.started,
        command=manifest.command,
        config=manifest.config,
        seed=manifest.seed,
        histories={
            each.suite: each.test_cases for each in _of(run, Exercised) if each.target == target
        },
        machine=manifest.hardware,
        records=digests(run),
    )


def outcome(rules: Sequence[RuleVerdict]) -> Outcome:
    """Return the outcome of a class by the outcomes of its rules."""
    core = {each.outcome for each in rules if each.kind == "core"}
    extended = {each.outcome for each in rules if each.kind == "extended"}
    if core & {"fail", "known_failure"} or core == {"not_claimed"}:
        return "not conformant"
    if "inconclusive" in core:
        return "inconclusive"
    kept = {"pass", "not_claimed", "engine_failure"}
    return "conformant" if extended <= kept else "partially conformant"


def exit_code(certificate: Certificate) -> Exit:
    """Return the code of a certificate: that of its worst rule, as for a run."""
    failing = {each.outcome for each in certificate.rules}
    if certificate.outcome == "not conformant" or "fail" in failing:
        return Exit.FAILURE
    return Exit.INCONCLUSIVE if "inconclusive" in failing else Exit.PASS


def digests(run: Run) -> dict[str, str]:
    """Return file -> SHA-256 of the run's records, without its reports."""
    names = {"run.json", "events.jsonl"}
    for each in _of(run, Failure):
        names |= {each.op_log, each.script_path}
    inside = (name for name in sorted(names) if _inside(run.directory, name))
    return {name: _digest(run.directory / name) for name in inside}


def _inside(folder: Path, name: str) -> bool:
    path = (folder / name).resolve()
    return path.is_relative_to(folder.resolve()) and path.is_file()


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _of(run: Run, kind: type[T]) -> Iterator[T]:
    return (event for event in run.events if isinstance(event, kind))


def _started(run: Run, target: str, wanted: ConformanceClass) -> TargetStarted:
    place, config = repr(str(run.directory)), run.manifest.config
    again = f"kvproof certify {target} --class {wanted.name}"
    if run.manifest.verb != "run" or config.get("budget") not in BUDGETS:
        raise UsageError(f"{place} is no run of budget {' or '.join(BUDGETS)}", again)
    level = config.get("level")  # of a record that may come from others
    if level not in LEVELS or LEVELS.index(level) < LEVELS.index(wanted.level):
        raise UsageError(f"{place} is of level {level}, not {wanted.level}", again)
    started = [each for each in _of(run, TargetStarted) if each.target == target]
    whole = any(each.target == target for each in _of(run, TargetConcluded))
    if not (started and whole and run.ended):
        raise UsageError(f"{place} has not judged {target} to its end", again)
    return started[-1]


def _rules(run: Run, target: str, wanted: ConformanceClass) -> list[RuleVerdict]:
    verdicts = {
        (each.suite, each.property): each
        for each in _of(run, PropertyVerdict)
        if each.target == target
    }
    judging = [(suite, prop.name, prop.rules) for suite, prop in wanted.properties()]
    found = []
    for rule in (*wanted.core, *wanted.extended):
        names = [(suite, name) for suite, name, rules in judging if rule in rules]
        properties = [_judged(target, *name, verdicts.get(name)) for name in names]
        found.append(
            RuleVerdict(
                rule=rule,
                sentence=RULES[rule],
                kind="core" if rule in wanted.core else "extended",
                outcome=_worst(properties),
                properties=properties,
            )
        )
    return found


def _judged(target: str, suite: str, name: str, found: PropertyVerdict | None) -> Judged:
    if found is None:  # a run reports inapplicable properties once, in their first suite
        return Judged(suite=suite, property=name, verdict="unsupported")
    return Judged(
        suite=suite,
        property=name,
        verdict=found.verdict,
        reason=found.reason,
        checks=found.checks,
        situations=found.situations,
        of_engine=found.of_engine and bool(divided(target)[1]),
    )


def _outcome(each: Judged) -> RuleOutcome:
    """Return what a property does to its rules; a failure of the engine excuses no situation."""
    if not each.of_engine:
        return _OUTCOMES[each.verdict]
    return "engine_failure" if each.checks and all(each.situations.values()) else "inconclusive"


def _worst(properties: Iterable[Judged]) -> RuleOutcome:
    there = {_outcome(each) for each in properties}
    return next((each for each in get_args(RuleOutcome) if each in there), "not_claimed")


def _not_claimed(started: TargetStarted) -> dict[str, str]:
    found = started.profile.get("unsupported")
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, Mapping) else {}


def _known(rules: Iterable[RuleVerdict]) -> Iterator[str]:
    for rule in rules:
        for each in rule.properties:
            if each.verdict == "expected_failure":
                yield f"{each.property}: {each.reason}"


def _power(wanted: ConformanceClass, engine: str) -> list[Power]:
    """Count the faults of the blind campaign, and those in the engine's own files."""
    blind_ = {each for each in blind().values() if _breaks(each, wanted)}
    folder = ROOMS / package_of(engine) / "planted"
    judging = {(suite, prop.name) for suite, prop in wanted.properties()}
    own = {each for each in engines().values() if (each.suite, each.property) in judging}
    there = {each for each in own if each.target.partition("==")[0] == engine}
    rows = ((SUBJECT, blind_, HERE), (engine, there, folder))
    return [_counted(*row) for row in rows if row[1] and (row[2] / VERDICTS).is_file()]


def _breaks(fault: PlantedFault, wanted: ConformanceClass) -> bool:
    promised = {each.strip() for each in fault.promise.split(",")}
    return not fault.equivalent and bool(promised & {*wanted.core, *wanted.extended})


def _counted(subject: str, faults: Collection[PlantedFault], folder: Path) -> Power:
    data = (folder / VERDICTS).read_bytes()
    rows = [msgspec.json.decode(line) for line in data.splitlines()]
    found = {row["fault"] for row in rows if row.get("by")}
    return Power(
        subject=subject,
        planted=len(faults),
        found=sum(each.name in found for each in faults),
        record=hashlib.sha256(data).hexdigest(),
    )
