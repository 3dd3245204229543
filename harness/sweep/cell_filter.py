"""Which cells of a sweep are wanted: `page=16,32 head_dim=128`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TypeAlias

from kvproof.harness.errors import UsageError
from kvproof.harness.records.sweep_events import CaseValue

_SHOWN = 20
"""Values of an axis in a message."""

Where: TypeAlias = Mapping[str, Sequence[str]]
"""Axis -> the values that are wanted, as text."""


def parse_where(text: str) -> dict[str, list[str]]:
    """Read conditions separated by spaces. Raises UsageError."""
    found: dict[str, list[str]] = {}
    for part in text.split():
        axis, equals, values = part.partition("=")
        wanted = [value for value in values.split(",") if value]
        if not (axis and equals and wanted):
            raise UsageError(
                f"--filter {part!r} is not AXIS=VALUE",
                'for example --filter "page=16,32 head_dim=128"',
            )
        found[axis] = [*found.get(axis, []), *wanted]
    return found


def matches(case: Mapping[str, CaseValue], where: Where) -> bool:
    """Whether a case has one of the wanted values of every axis."""
    return all(axis in case and _text(case[axis]) in values for axis, values in where.items())


def _text(value: CaseValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def check_axes(where: Where, known: Mapping[str, Sequence[CaseValue]]) -> None:
    """Raise UsageError for an axis that no cell has, or a value that it has in none."""
    for axis, wanted in where.items():
        if axis not in known:
            close = get_close_matches(axis, known, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"known here: {', '.join(known)}"
            raise UsageError(f"--filter {axis!r} is not an axis of these kernels", hint)
        values = list(map(_text, known[axis]))
        if wrong := next((value for value in wanted if value not in values), ""):
            raise UsageError(
                f"--filter {axis} = {wrong!r} is the value of no cell",
                f"legal: {', '.join(values[:_SHOWN])}{', ...' * (len(values) > _SHOWN)}",
            )
