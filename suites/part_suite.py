"""A part as a suite: judged on the reference, unsupported everywhere else."""

from __future__ import annotations

from functools import partial

from kvproof.harness import oplog
from kvproof.harness.violation import Violation
from kvproof.suites import part_log
from kvproof.suites.part import Part, PartViolation
from kvproof.suites.part_machine import explore
from kvproof.suites.property import Property
from kvproof.suites.suite import Evidence, Suite

SUBJECT = "reference"
"""The target whose inside the parts look at."""
ELSEWHERE = "a part of the reference engine"


def part_suite(part: Part, target: str) -> Suite:
    """Return the suite of a part for the target called `target`."""

    def why_not(_: Property) -> str:
        return part.missing() if target == SUBJECT else ELSEWHERE

    return Suite(
        name=part.name,
        properties=part.properties,
        why_not=why_not,
        explore=partial(explore, part),
        evidence=_evidence,
    )


def _evidence(violation: Violation) -> Evidence:
    assert isinstance(violation, PartViolation)
    log = part_log.record(violation)
    return Evidence(
        fingerprint=log.fingerprint,
        log=oplog.dump(log),
        script=part_log.script(violation),
        history=part_log.steps(violation.history, violation.sentence),
        blocks=[],
        tables={},
    )
