"""Verify a certificate: by its own words, by the records of its run, and by a run of one's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from kvproof.harness.decoding import NotValid, decode, read_file
from kvproof.harness.errors import UsageError
from kvproof.harness.records.run_directory import Run
from kvproof.suites.specification.certificate import Certificate, digests, issue, outcome
from kvproof.suites.specification.classes import CLASSES, CURRENT


def read(path: Path) -> Certificate:
    """Return a certificate. Raises UsageError with the file and the problem."""
    data = read_file(path, what="certificate", hint="kvproof certify writes one")
    try:
        return decode(data, Certificate)
    except (NotValid, msgspec.ValidationError) as error:
        raise UsageError(
            f"{str(path)!r} is no certificate: {error}", "kvproof certify writes one"
        ) from error


def own_problems(certificate: Certificate) -> Iterator[str]:
    """Yield the contradictions of a certificate to the specification and to itself."""
    if certificate.specification not in CURRENT:
        yield (
            f"it is of specification {certificate.specification}; certificates count for "
            f"{' and '.join(CURRENT)}"
        )
    wanted = CLASSES.get(certificate.conformance_class)
    if wanted is None:
        yield f"there is no class {certificate.conformance_class!r}"
        return
    stated = [(each.rule, each.kind) for each in certificate.rules]
    listed = [(rule, wanted.kind(rule)) for rule in (*wanted.core, *wanted.extended)]
    for rule, kind in listed:
        if (rule, kind) not in stated:
            yield f"the {kind} rule {rule} is missing"
    amounts = outcome(certificate.rules)
    if amounts != certificate.outcome:
        yield f"it says {certificate.outcome!r}, and its rules amount to {amounts!r}"


def record_problems(certificate: Certificate, run: Run) -> Iterator[str]:
    """Yield the differences between a certificate and the records of its run; no engine runs."""
    there = digests(run)
    for name, digest in certificate.records.items():
        if there.get(name) != digest:
            yield f"{name} is {'another file' if name in there else 'missing'}"
    yield from differences(certificate, run)


def differences(certificate: Certificate, run: Run) -> Iterator[str]:
    """Yield the properties that a run judges otherwise. Raises UsageError for a partial run."""
    wanted = CLASSES[certificate.conformance_class]
    again = issue(run, certificate.target, wanted, certificate.build)
    before, now = _verdicts(certificate), _verdicts(again)
    for key in sorted({*before, *now}):
        if before.get(key) != now.get(key):
            suite, name = key
            yield f"{suite}: {name} is {before.get(key)} there and {now.get(key)} here"


def _verdicts(certificate: Certificate) -> dict[tuple[str, str], str]:
    return {
        (each.suite, each.property): each.verdict
        for rule in certificate.rules
        for each in rule.properties
    }
