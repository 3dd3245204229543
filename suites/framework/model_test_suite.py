"""A part as a suite: judged on the reference, and on targets that offer their implementation."""

from __future__ import annotations

from functools import partial
from typing import Any

from kvproof.harness.errors import TargetDied, UsageError
from kvproof.harness.isolation.handles import Handle
from kvproof.harness.oracle.violation import Violation
from kvproof.harness.reproduce import oplog
from kvproof.suites.framework import model_test_log as part_log
from kvproof.suites.framework.model_test import Arguments, Offered, Part, PartViolation
from kvproof.suites.framework.model_test_machine import explore
from kvproof.suites.framework.property import Property
from kvproof.suites.framework.suite import Evidence, Suite

SUBJECT = "reference"
"""The target whose inside the parts look at."""
ELSEWHERE = "a part of the reference engine"
CALL_TIMEOUT_S = 120.0
"""Of the calls of one operation, where a target carries them out."""


def target_suite(part: Part, handle: Handle) -> Suite:
    """Return the suite of a part for a target: on what it offers, if it offers the part."""
    offer = None if handle.name == SUBJECT else _offer(part, handle)
    if offer is None:
        return part_suite(part, handle.name)
    return Suite(
        name=part.name,
        properties=tuple(_there(prop, offer) for prop in part.properties),
        why_not=lambda prop: offer.without.get(prop.name, ""),
        explore=partial(explore, offer.part),
        evidence=partial(_evidence, target=handle.name),
    )


def offered_part(part: Part, handle: Handle) -> Part:
    """Return a part on what a target offers. Raises UsageError if it does not offer it."""
    offer = _offer(part, handle)
    if offer is None:
        raise UsageError(f"target {handle.name!r} does not offer the part {part.name!r}")
    return offer.part


def _offer(part: Part, handle: Handle) -> Offered | None:
    """A target that does not start offers nothing: that it does not is told when it is judged."""
    if part.offered is None:
        return None
    try:
        job = handle.profile.parts.get(part.name)
        return part.offered(partial(_ask, handle, job)) if job else None
    except TargetDied:
        return None


def _ask(handle: Handle, job: str, *calls: tuple[str, Arguments]) -> list[Any]:
    told = handle.run_job(job, {"calls": calls}, timeout=CALL_TIMEOUT_S)
    answers: list[Any] = told["answers"]
    return answers


def _there(prop: Property, offer: Offered) -> Property:
    """Return a property as the offered part has it."""
    return next((each for each in offer.part.properties if each.name == prop.name), prop)


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


def _evidence(violation: Violation, *, target: str = "") -> Evidence:
    assert isinstance(violation, PartViolation)
    log = part_log.record(violation, target=target)
    return Evidence(
        fingerprint=log.fingerprint,
        log=oplog.dump(log),
        script=part_log.script(violation, target=target),
        history=part_log.steps(violation.history, violation.sentence),
        blocks=[],
        tables={},
    )
