"""A plain script that shows a failure with the adapter alone: no Hypothesis, no op log.

A property of one answer is asserted directly; for one of the whole history (events, orphans), a
`Session` checks the same operations.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass

from kvproof.harness.contract import operations as ops
from kvproof.harness.contract.target import Completed, Scheduled, TargetConfig
from kvproof.harness.errors import ANSWERS
from kvproof.harness.oracle.state import OracleState
from kvproof.harness.oracle.violation import Violation

API = "kvproof.harness.api"
"""The one module that scripts about targets import."""
LINE = 100

_HELPERS = {
    "slot(": [
        "def slot(answer, position):",
        "    return answer.tables[0][position // {page}] * {page} + position % {page}",
        "",
    ],
    "blocks_of(": [
        "def blocks_of(records):",
        "    return {{block for record in records for block in record.blocks[0]}}",
        "",
    ],
}


def source(violation: Violation, imports: Mapping[str, Iterable[str]], body: Sequence[str]) -> str:
    """Return the source of a script: the sentence of a violation, imports by module, a body."""
    lines = [docstring(violation), ""]
    for module, names in imports.items():
        lines += _import(module, sorted(names))
    return "\n".join([*lines, "", *body]) + "\n"


def _import(module: str, names: Sequence[str]) -> list[str]:
    line = f"from {module} import {', '.join(names)}"
    if len(line) <= LINE:
        return [line]
    return [f"from {module} import (", *(f"    {name}," for name in names), ")"]


def render(target: str, violation: Violation, state: OracleState) -> str:
    """Return the script of a violation in a session: the adapter alone, or a `Session` judges."""
    body = _direct(violation, state) if violation.assertion else _judged(state)
    if violation.property == ANSWERS:
        body.append("target.close()")
    body.insert(0, f"target = open_target({target!r}, {code(state.config)})")
    used = "\n".join(body)
    for call, helper in _HELPERS.items():
        if call in used:
            body[:0] = [line.format(page=state.config.kernel_size) for line in helper]
    names = [name for name in _IMPORTABLE if f"{name}(" in used or f", {name})" in used]
    if not violation.assertion:
        names += {type(operation).__name__ for operation, _ in state.history}
        names.append("Session")
    return source(violation, {API: [*names, "open_target"]}, body)


def render_start(target: str, violation: Violation, config: TargetConfig) -> str:
    """Return the script of a target that dies when it is made, or when it is inspected first."""
    body = [f"target = open_target({target!r}, {code(config)})"]
    body.append(f"Session(target, {code(config)})")
    names = [name for name in _IMPORTABLE if f"{name}(" in body[0]]
    return source(violation, {API: [*names, "Session", "open_target"]}, body)


_IMPORTABLE = (
    "Group",
    "HitStatistics",
    "Namespace",
    "Refused",
    "Released",
    "Request",
    "Scheduled",
    "Span",
    "TargetConfig",
)

RESERVED = frozenset(
    [
        *("target", "last", "done", "before", "usage", "batch", "records", "slot", "blocks_of"),
        *("session", "Session", "open_target"),
        *_IMPORTABLE,
        *(kind.__name__ for kind in ops.OPERATIONS.values()),
        *dir(builtins),
    ]
)
"""Names that a script may use for something else than a request."""


def docstring(violation: Violation) -> str:
    """Return the failure as the docstring of a script."""
    text = f"{violation.property}: {violation.sentence}."
    if violation.detail:
        text += f"\n\n{violation.detail[:1].upper()}{violation.detail[1:]}.\n"
    text = text.replace("\\", "\\\\").replace('"""', "'''")
    return f'"""{text}"""'


def _direct(violation: Violation, state: OracleState) -> list[str]:
    """Write each operation as a call of the contract, then the assertion."""
    lines: list[str] = []
    assertion = violation.assertion
    last = len(state.history) - 1
    if "records" in assertion:
        lines.append("records = []")
    for index, (operation, answer) in enumerate(state.history):
        if index == last and "before" in assertion:
            lines.append("before = target.inspect()")
        lines += _call(state, operation, answer, final=index == last)
        if "records" in assertion and isinstance(answer, (Scheduled, Completed)):
            lines.append("records.append(last)")
    if "usage" in assertion:
        lines.append("usage = target.inspect().usage")
    sentence = violation.sentence
    return [*lines, f"assert {_or_refused(assertion, state)}, {sentence!r}"]


def _or_refused(assertion: str, state: OracleState) -> str:
    """Let a correct target refuse a request that a wrong one had room for."""
    operation, answer = state.history[-1]
    asked = isinstance(operation, (ops.Admit, ops.Extend)) and isinstance(answer, Scheduled)
    parts = (f"{_variable(operation)}.", "slot(", "last.", "done.")
    if asked and any(part in assertion for part in parts):
        return f"isinstance(last, Refused) or {assertion}"
    return assertion


def _variable(operation: ops.Operation) -> str:
    return str(getattr(getattr(operation, "request", operation), "id", ""))


def _call(
    state: OracleState, operation: ops.Operation, answer: object, *, final: bool
) -> list[str]:
    """Write one operation; a target without steps in flight completes each step at once."""
    verb = ops.name(operation)
    if isinstance(operation, ops.Complete):
        assert isinstance(answer, Completed)
        given = _arguments(operation)
        rows = state.given.get(answer.step)
        given = [item for item in given if not item.startswith("routed=")]
        given += [f"experts={code(rows)}"] if rows else []
        return [f"done = last = target.complete({', '.join((str(answer.step), *given))})"]
    arguments = ", ".join(_arguments(operation))
    names = {"batch": "batch = last"}
    variable = _variable(operation)
    if isinstance(operation, (ops.Admit, ops.Extend)):
        names[verb] = f"{variable} = last"
    lines = [f"{names.get(verb, 'last')} = target.{verb}({arguments})"]
    drafts = getattr(operation, "drafts", ())
    if isinstance(answer, Scheduled) and not state.profile.in_flight_steps and not drafts:
        guard = f"if isinstance({variable}, Scheduled): " if final else ""
        rows = state.given.get(answer.step)
        rows_given = f", experts={code(rows)}" if rows else ""
        lines.append(f"{guard}done = target.complete({answer.step}{rows_given})")
    return lines


def _arguments(operation: ops.Operation) -> list[str]:
    return [
        code(getattr(operation, item.name))
        if item.default is MISSING
        else f"{item.name}={code(getattr(operation, item.name))}"
        for item in fields(operation)
        if item.default is MISSING or getattr(operation, item.name) != item.default
    ]


def _judged(state: OracleState) -> list[str]:
    lines = [f"session = Session(target, {code(state.config)})"]
    return lines + [f"session.apply({code(operation)})" for operation, _ in state.history]


def code(value: object) -> str:
    """Return Python source for a record; fields that have their default are left out."""
    if isinstance(value, tuple):
        inner = ", ".join(map(code, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if not is_dataclass(value) or isinstance(value, type):
        return repr(value)
    parts = []
    for item in fields(value):
        content = getattr(value, item.name)
        if item.default is MISSING:
            parts.append(code(content))
        elif content != item.default:
            parts.append(f"{item.name}={code(content)}")
    return f"{type(value).__name__}({', '.join(parts)})"
