"""Certificates of anybody, as data: read from folders, and put in series that may be compared.

A file that is no certificate, is too large, or contradicts the specification is an entry with its
reason. Releases are compared within a series alone: equal class and rules, judge and device.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from kvproof.harness.errors import UsageError
from kvproof.harness.foreign_text import clean
from kvproof.suites.specification.certificate import Certificate
from kvproof.suites.specification.verification import own_problems, read

MOST_BYTES = 4 << 20
"""Bytes of a file."""
MOST_FILES = 500
"""Files of a folder."""
MOST_TEXT = 300
"""Characters of a text of others."""


class Entry(NamedTuple):
    """One file."""

    file: str
    digest: str
    """First digits of its SHA-256; empty: it was not read."""
    certificate: Certificate | None
    problem: str
    """Reason why it does not count; empty: it does."""


class Series(NamedTuple):
    """Certificates that may be compared, those of one target in one class."""

    name: str
    conformance_class: str
    specification: str
    judge: str
    """Version of kvproof, budget and level."""
    device: str


class Change(NamedTuple):
    """A rule whose outcome differs from that of the release before."""

    rule: str
    before: str
    after: str


def collected(folders: Iterable[Path]) -> list[Entry]:
    """Return an entry for each `*.json` in folders. Raises UsageError for a missing folder."""
    found = []
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"{str(folder)!r} is no folder of certificates", "name another one")
        files = sorted(folder.glob("*.json"))
        found += [_entry(path) for path in files[:MOST_FILES]]
        if len(files) > MOST_FILES:
            found.append(Entry(folder.name, "", None, f"{len(files) - MOST_FILES} more files"))
    return found


def _entry(path: Path) -> Entry:
    name = text(path.name)
    if not path.is_file():
        return Entry(name, "", None, "it is no file")
    if path.stat().st_size > MOST_BYTES:
        return Entry(name, "", None, f"it is larger than {MOST_BYTES >> 20} MiB")
    try:
        certificate = read(path)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    except (UsageError, OSError) as error:
        return Entry(name, "", None, text(str(error).replace(repr(str(path)), "it")))
    problems = islice(own_problems(certificate), 3)
    return Entry(name, digest, certificate, text("; ".join(problems)))


def text(value: str) -> str:
    """Return a text of others on one line, bounded, without control characters."""
    line = " ".join(clean(value[: 4 * MOST_TEXT]).split())
    return line if len(line) <= MOST_TEXT else f"{line[:MOST_TEXT]}..."


def name_of(certificate: Certificate) -> str:
    """Return the name of a target without its release."""
    return text(certificate.target.partition("==")[0])


def series_of(certificate: Certificate) -> Series:
    """Return what a certificate may be compared with."""
    config, machine = certificate.config, certificate.machine
    scale = (f"{key} {config[key]}" for key in ("budget", "level") if key in config)
    return Series(
        name_of(certificate),
        text(certificate.conformance_class),
        text(certificate.specification),
        text(", ".join([f"kvproof {certificate.kvproof}", *scale])),
        text(", ".join(f"{key} {machine[key]}" for key in sorted(machine)[:8])),
    )


def histories(entries: Iterable[Entry]) -> dict[Series, list[Certificate]]:
    """Return series -> its newest certificate of each release, in the order of releases."""
    found: dict[Series, dict[str, Certificate]] = defaultdict(dict)
    for each in counting(entries):
        found[series_of(each)].update({each.version: each})
    return {
        key: sorted(rows.values(), key=lambda one: order(one.version))
        for key, rows in sorted(found.items())
    }


def counting(entries: Iterable[Entry]) -> list[Certificate]:
    """Return the certificates that count, the newest last."""
    there = (each.certificate for each in entries if each.certificate and not each.problem)
    return sorted(there, key=lambda each: each.started)


def changes(before: Certificate, after: Certificate) -> Iterator[Change]:
    """Yield the rules that a release keeps otherwise than the one before."""
    earlier = {each.rule: each.outcome for each in before.rules}
    for each in after.rules:
        if earlier.get(each.rule, each.outcome) != each.outcome:
            yield Change(each.rule, earlier[each.rule], each.outcome)


def passed(certificate: Certificate, kind: str) -> tuple[int, int]:
    """Return how many claimed rules of a kind pass, and how many are claimed."""
    outcomes = [each.outcome for each in certificate.rules if each.kind == kind]
    claimed = [each for each in outcomes if each != "not_claimed"]
    return sum(each == "pass" for each in claimed), len(claimed)


def order(version: str) -> Sequence[int]:
    """Return the key by which releases are sorted."""
    return [int(each) for each in re.findall(r"\d{1,9}", version.partition("+")[0])[:6]]
