"""The durable forms of a part's failure: op log, plain script, steps for a report."""

from __future__ import annotations

import hashlib
import textwrap
from pathlib import Path
from typing import Any

import msgspec

from kvproof.harness.records.events import Step
from kvproof.harness.reproduce.oplog import FORMAT, read
from kvproof.harness.reproduce.script import docstring
from kvproof.suites.framework.model_test import Arguments, History, Operation, PartViolation


class PartLog(msgspec.Struct, frozen=True, kw_only=True):
    """A history of a part and the property that it broke when it was recorded."""

    format: int = FORMAT
    part: str
    target: str = ""
    """That offered the part; empty: the reference."""
    property: str
    oracle: str = ""
    sentence: str = ""
    fingerprint: str = ""
    config: dict[str, Any]
    operations: list[tuple[str, dict[str, Any]]]
    """Verbs and their keywords."""


def record(violation: PartViolation, *, target: str = "") -> PartLog:
    """Return the log of a violation, on what `target` offers if one is named."""
    history = violation.history
    return PartLog(
        part=history.part.name,
        target=target,
        property=violation.property,
        oracle=violation.oracle,
        sentence=violation.sentence,
        fingerprint=fingerprint(violation),
        config=history.config,
        operations=[(each.verb, each.arguments) for each in history.operations],
    )


def fingerprint(violation: PartViolation) -> str:
    """Group failures: the same property broken by the same verb of the same part."""
    history = violation.history
    verb = history.operations[-1].verb if history.operations else ""
    text = f"{history.part.name}/{violation.property}/{verb}"
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def load(path: Path) -> PartLog:
    """Read a log. Raises UsageError that names the file and what is wrong."""
    return read(path, msgspec.json.Decoder(PartLog).decode)


class _Kind(msgspec.Struct, frozen=True):
    """What tells logs of parts from logs of targets."""

    part: str = ""


def is_part_log(path: Path) -> bool:
    """Tell which kind of log a file is. Raises UsageError if it is none."""
    return bool(read(path, msgspec.json.Decoder(_Kind).decode).part)


def script(violation: PartViolation, *, target: str = "") -> str:
    """Return the source of a script that fails where the part is wrong and passes when fixed."""
    history = violation.history
    calls = textwrap.indent("".join(f"{_call(each)},\n" for each in history.operations), "    ")
    where = f", target={target!r}" if target else ""
    return (
        f"{docstring(violation)}\n\n"
        "from kvproof.suites.framework.model_test import play\n\n"
        f"play({history.part.name!r}, {history.config!r}, [\n{calls}]{where})\n"
    )


def _call(operation: Operation) -> str:
    return f"({operation.verb!r}, {operation.arguments!r})"


def steps(history: History, note: str) -> list[Step]:
    """Spell out a history, with what went wrong on its last step."""
    last = len(history.operations) - 1
    return [
        Step(
            op=each.verb,
            arguments=_keywords(each.arguments),
            answer=each.answer,
            note=note if index == last else "",
        )
        for index, each in enumerate(history.operations)
    ]


def _keywords(arguments: Arguments) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())
