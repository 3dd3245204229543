"""Requests, launches and transfers of a failing history over virtual time, for `Failure`.

A time is a step of the engine; -1: it had not come when the property failed.
"""

from __future__ import annotations

import msgspec


class StatusSpan(msgspec.Struct, frozen=True, kw_only=True):
    """A status that a request had at the end of each of these steps."""

    status: str
    first: int
    last: int


class RequestLane(msgspec.Struct, frozen=True, kw_only=True):
    """One request."""

    request: str
    about: str
    """Lengths, namespace and media in words."""
    arrived: int
    ended: int = -1
    outcome: str = ""
    spans: list[StatusSpan] = []


class LaunchRow(msgspec.Struct, frozen=True, kw_only=True):
    """A request's share of a launch: positions `start` up to `stop`."""

    request: str
    start: int
    stop: int
    samples: bool
    """It answers with a token; False: a chunk of a prompt."""
    drafts: int = 0
    hit: int = 0
    """Tokens that it did not compute, in its first row."""
    reads: list[list[int]] = []
    """Blocks by group."""
    writes: list[list[int]] = []


class LaunchView(msgspec.Struct, frozen=True, kw_only=True):
    """One batch on the device."""

    number: int
    submitted: int
    executed: int = -1
    rows: list[LaunchRow] = []


class TransferView(msgspec.Struct, frozen=True, kw_only=True):
    """One copy between the pool and another tier."""

    number: int
    stream: str
    submitted: int
    ended: int = -1
    reads: list[int] = []
    """Blocks of the pool."""
    writes: list[int] = []


class SlotsRead(msgspec.Struct, frozen=True, kw_only=True):
    """The slots of one block at the read that failed: they must hold `request`'s own content."""

    launch: int
    request: str
    group: int
    layer: str
    block: int
    first: int
    """Position."""
    last: int
    wrong: int
    """Slots that hold something else."""
    found: str = ""
    """Content of the first wrong one in words."""


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """The steps before a failure of a whole engine."""

    failed: int
    """The step in which the property failed."""
    since: int = 0
    """The first step that is listed."""
    block_size: int
    groups: list[str] = []
    operations: list[tuple[str, int, int]] = []
    """Verb, and the steps before and after it."""
    resets: list[int] = []
    """Steps after which the cache was reset."""
    requests: list[RequestLane] = []
    launches: list[LaunchView] = []
    transfers: list[TransferView] = []
    slots: list[SlotsRead] = []
