"""An object store under test, and its promises; `contract` explains how to make one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from kvproof.reference.stores.object_store import ObjectStore


class Traits(NamedTuple):
    largest: int
    capacity: int = 0
    leases_hold: bool = True
    counts: bool = True
    least_recent_first: bool = False
    restart: Callable[[], None] | None = None


class Provider(Protocol):
    """An implementation under test."""

    @property
    def name(self) -> str:
        """The name in reports."""

    @property
    def traits(self) -> Traits:
        """Its promises."""

    def fresh(self, clients: int) -> Sequence[ObjectStore]:
        """Return clients of one empty store; those returned before are not used any more."""
