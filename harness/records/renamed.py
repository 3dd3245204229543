"""Names of properties that 0.14 published, which its files hold; they go with 0.16.

Op logs and run records may name a property by its old name. They are read as if they had the new
one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec

from kvproof.harness.records.events import AnyEvent

RENAMED: Final[Mapping[str, str]] = {}
"""Old name -> name."""


def current(name: str) -> str:
    """Return the name that a property has now."""
    return RENAMED.get(name, name)


def upgraded(event: AnyEvent) -> AnyEvent:
    """Return an event of any version with the names that its properties and workloads have now."""
    return _upgraded(event)


_NAMES = ("property", "expected")
_COUNTERS = ("checks", "tolerated", "unshrunk")
_LISTS = ("failed", "shrunk")
_NESTED = ("kill", "shadow")

S = TypeVar("S", bound=msgspec.Struct)


def _upgraded(record: S) -> S:
    changed: dict[str, Any] = {}
    for field in record.__struct_fields__:
        value = getattr(record, field)
        new = _value(field, value)
        if new != value:
            changed[field] = new
    return msgspec.structs.replace(record, **changed) if changed else record


def _value(field: str, value: Any) -> Any:
    if field in _NAMES and isinstance(value, str):
        return current(value)
    if field in _COUNTERS and isinstance(value, dict):
        return {current(name): count for name, count in value.items()}
    if field in _LISTS and isinstance(value, list):
        return [current(name) for name in value]
    if field in _NESTED and isinstance(value, msgspec.Struct):
        return _upgraded(value)
    return value
