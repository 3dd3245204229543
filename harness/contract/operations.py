"""The operations of a history: drawn, logged, replayed and printed."""

from __future__ import annotations

from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from functools import cache
from typing import Any, Union, cast

from kvproof.harness.contract.target import Request


@dataclass(frozen=True)
class Admit:
    """`Target.admit`."""

    request: Request
    compute: int | None = None


@dataclass(frozen=True)
class Extend:
    """`Target.extend`."""

    id: str
    tokens: tuple[int, ...] = ()
    compute: int | None = None
    drafts: tuple[int, ...] = ()


@dataclass(frozen=True)
class Complete:
    """`Target.complete` of the oldest step in flight."""

    accepted: int | None = None
    """Drafts that stay; all: None."""
    routed: bool = True
    """False: `complete` gets no expert rows, although the target takes them (R3)."""


@dataclass(frozen=True)
class Experts:
    """`Target.experts`."""

    id: str


@dataclass(frozen=True)
class Finish:
    """`Target.finish`."""

    id: str


@dataclass(frozen=True)
class Cancel:
    """`Target.cancel`."""

    id: str


@dataclass(frozen=True)
class Preempt:
    """`Target.preempt`."""

    id: str


@dataclass(frozen=True)
class Pin:
    """`Target.pin`."""

    request: Request


@dataclass(frozen=True)
class Unpin:
    """`Target.unpin`."""

    id: str


@dataclass(frozen=True)
class Evict:
    """`Target.evict`."""

    count: int


@dataclass(frozen=True)
class Reset:
    """`Target.reset`."""


@dataclass(frozen=True)
class Lookup:
    """`Target.lookup`."""

    request: Request


@dataclass(frozen=True)
class ReadBatch:
    """`Target.batch`."""

    ids: tuple[str, ...]


Operation = Union[  # noqa: UP007 - read at run time by Python 3.10's dataclass tools
    Admit,
    Extend,
    Complete,
    Experts,
    Finish,
    Cancel,
    Preempt,
    Pin,
    Unpin,
    Evict,
    Reset,
    Lookup,
    ReadBatch,
]

OPERATIONS: dict[str, type[Any]] = {
    "admit": Admit,
    "extend": Extend,
    "complete": Complete,
    "experts": Experts,
    "finish": Finish,
    "cancel": Cancel,
    "preempt": Preempt,
    "pin": Pin,
    "unpin": Unpin,
    "evict": Evict,
    "reset": Reset,
    "lookup": Lookup,
    "batch": ReadBatch,
}
"""Name in op logs -> operation."""

_NAMES = {kind: name for name, kind in OPERATIONS.items()}


def name(operation: Operation) -> str:
    """Return the name of the verb."""
    return _NAMES[type(operation)]


def to_json(operation: Operation) -> dict[str, Any]:
    """Return a JSON object without the fields that have their default."""
    return {"op": name(operation), **compact(operation)}


def compact(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass, nested ones too, that differ from their defaults."""
    kept, kind = {}, cast("Any", type(value))
    for name, default in _defaults(kind):
        content = getattr(value, name)
        if default is MISSING or content != default:
            kept[name] = _plain(content)
    return kept


@cache
def _defaults(kind: type[Any]) -> tuple[tuple[str, Any], ...]:
    return tuple((item.name, item.default) for item in fields(kind))


def _plain(content: Any) -> Any:
    kind = type(content)
    if kind is int or kind is str:
        return content
    if is_dataclass(content) and not isinstance(content, type):
        return compact(content)
    if isinstance(content, tuple):
        return [_plain(item) for item in content]
    return content


def arguments(operation: Operation) -> dict[str, Any]:
    """Return all fields, nested records as dictionaries."""
    return asdict(operation)
