"""Meaning of a provider's exception: out of resources with the numbers, or a crash."""

from __future__ import annotations

import re
import traceback
from typing import NamedTuple

from kvproof.harness.records.sweep_events import CellOutcome, Resources

_LOG = 6000
"""Characters of a traceback that are kept."""

_NUMBERS = (
    re.compile(r"(?P<name>[\w ]+), Required: (?P<required>\d+), Hardware limit: (?P<limit>\d+)"),
    re.compile(
        r"uses too much (?P<name>shared data) \((?P<required>0x[0-9a-f]+) bytes,"
        r" (?P<limit>0x[0-9a-f]+) max\)"
    ),
    re.compile(
        r"(?P<name>shared memory)\D*(?P<required>\d+)\D+(?:limit|max\w*|available|exceeds)\D*"
        r"(?P<limit>\d+)",
        re.IGNORECASE,
    ),
)
"""Messages of Triton, ptxas and others with requested and available amounts."""

_WORDS = re.compile(
    r"out of resources?\b|too many resources requested|LaunchOutOfResources"
    r"|uses too much shared data|(?:exceed|too much|insufficient|not enough)\D{0,40}shared memory"
    r"|shared memory\D{0,40}(?:exceed|insufficient)",
    re.IGNORECASE,
)


class Failure(NamedTuple):
    """How a launch ended that raised."""

    outcome: CellOutcome
    reason: str
    resources: Resources | None = None
    log: str = ""


def failure_of(error: BaseException) -> Failure:
    """Classify a failed launch: out of resources, or broken."""
    text = "".join(traceback.format_exception_only(error)).strip()
    resources = _resources(error, text)
    if resources is not None:
        return Failure("out_of_resources", _in_words(resources, text), resources)
    log = "".join(traceback.format_exception(error))[-_LOG:]
    return Failure("crash", text, log=log)


def _resources(error: BaseException, text: str) -> Resources | None:
    if type(error).__name__ == "OutOfResources":
        required, limit = (getattr(error, name, None) for name in ("required", "limit"))
        if isinstance(required, int) and isinstance(limit, int):
            return Resources(name=str(getattr(error, "name", "")), required=required, limit=limit)
    for pattern in _NUMBERS:
        if found := pattern.search(text):
            numbers = (int(found[part], 0) for part in ("required", "limit"))
            required, limit = numbers
            if required > limit:
                return Resources(name=found["name"].strip(), required=required, limit=limit)
    return Resources() if _WORDS.search(text) else None


def _in_words(resources: Resources, text: str) -> str:
    if resources.required is None:
        return text
    return f"{resources.name}: {resources.required:,} asked for, {resources.limit:,} there"
