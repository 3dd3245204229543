"""Op logs: histories as JSON, the durable form of a failure.

An op log is data: it is decoded into records, never executed. It names no engine internals, so a
log of the suite `cache` can be replayed on another target.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from kvproof.harness.contract.target import CONTRACT_VERSION, TargetConfig
from kvproof.harness.decoding import parse_json, read_file
from kvproof.harness.errors import ANSWERS, UsageError
from kvproof.harness.oracle.violation import Violation
from kvproof.harness.records.renamed import current
from kvproof.harness.records.run_directory import UNREADABLE
from kvproof.harness.reproduce import validity
from kvproof.harness.reproduce.session_play import decode

FORMAT = 2
LONGEST_NAME = 100_000
"""Characters of a name or another text: each is copied into every message and record."""
CACHE = "cache"
"""The suite whose operations are the verbs of the contract."""


class OpLog(msgspec.Struct, frozen=True, kw_only=True):
    """A history of a suite, and the property that it broke when it was recorded."""

    format: int = FORMAT
    contract: int = CONTRACT_VERSION
    suite: str = CACHE
    target: str
    property: str
    oracle: str = ""
    sentence: str = ""
    fingerprint: str = ""
    config: dict[str, Any]
    operations: list[dict[str, Any]]
    """Each is its keywords and `op`, its verb."""


class _Kind(msgspec.Struct, frozen=True):
    format: int = FORMAT
    contract: int = CONTRACT_VERSION


def record(
    violation: Violation,
    *,
    suite: str,
    target: str,
    config: Mapping[str, Any],
    calls: Iterable[tuple[str, Mapping[str, Any]]],
) -> OpLog:
    """Return the op log of a violation; `calls` are verbs and their keywords."""
    operations = [{"op": verb, **keywords} for verb, keywords in calls]
    verb = operations[-1]["op"] if operations else ""
    scope = target.split("==")[0] if suite == CACHE else suite
    return OpLog(
        suite=suite,
        target=target,
        property=violation.property,
        oracle=violation.oracle,
        sentence=violation.sentence,
        fingerprint=fingerprint(scope, violation.property, verb),
        config=dict(config),
        operations=operations,
    )


def fingerprint(scope: str, prop: str, verb: str) -> str:
    """Group failures: the same property broken by the same verb of an engine, or of a suite."""
    return hashlib.sha256(f"{scope}/{prop}/{verb}".encode()).hexdigest()[:10]


def load(path: Path) -> OpLog:
    """Read an op log of any version. Raises UsageError that names the file and its fault."""
    try:
        hint = "name an op log, or the directory of a run with failures"
        data = read_file(path, what="op log", hint=hint)
        tree = parse_json(data)  # msgspec takes the last of two equal keys
        if len(data) > LONGEST_NAME:
            _check_texts(tree)
        return _parse(path, data)
    except UNREADABLE as error:
        raise UsageError(
            f"{str(path)!r} is no op log: {error}", "record one with kvproof run or fuzz"
        ) from error


def _check_texts(tree: Any) -> None:
    rest = [tree]
    while rest:
        each = rest.pop()
        if isinstance(each, str) and len(each) > LONGEST_NAME:
            raise msgspec.ValidationError(
                f"a text in it has {len(each):,} characters, at most {LONGEST_NAME:,}"
            )
        if isinstance(each, dict):
            rest += [*each, *each.values()]
        elif isinstance(each, list):
            rest += each


def _parse(path: Path, text: bytes) -> OpLog:
    kind = msgspec.json.decode(text, type=_Kind)
    if kind.format > FORMAT or kind.contract > CONTRACT_VERSION:
        # checked first: a newer log may have no known form
        raise UsageError(f"{str(path)!r} was written by a newer kvproof", "upgrade kvproof")
    log = msgspec.json.decode(text, type=OpLog)
    log = msgspec.structs.replace(log, property=current(log.property))
    if log.suite == CACHE:
        if not (log.operations or log.property == ANSWERS):  # a target may die when it is made
            raise msgspec.ValidationError("it has no operations")
        validity.check(msgspec.convert(log.config, TargetConfig), decode(log.operations))
    elif not all(isinstance(item.get("op"), str) for item in log.operations):
        raise msgspec.ValidationError("an operation has no verb `op`")
    return log


def calls(log: OpLog) -> list[tuple[str, dict[str, Any]]]:
    """Return the operations of a log as verbs and their keywords."""
    return [
        (item["op"], {name: value for name, value in item.items() if name != "op"})
        for item in log.operations
    ]


def target_config(log: OpLog) -> TargetConfig:
    """Return the configuration of the target, from a log of the suite `cache`."""
    return msgspec.convert(log.config, TargetConfig)


def dump(log: OpLog) -> bytes:
    """Return the JSON of an op log, one field and one operation a line."""
    fields = msgspec.structs.asdict(log)
    operations = [_line(each) for each in fields.pop("operations")]
    lines = [f"{_line(name)}: {_line(value)}" for name, value in fields.items()]
    lines.append('"operations": [' + ",".join(f"\n  {each}" for each in operations) + "\n ]")
    return ("{\n " + ",\n ".join(lines) + "\n}\n").encode()


def _line(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=0).decode()
