"""The state under the checks of a transfer: the system under test and its model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kvproof.suites.framework.component_suite import Config
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.transfer.oracle import Bytes, Cache, Index, Slot
from kvproof.suites.reference.transfer.subject import Subject


class TransferState(Protocol):
    config: Config
    coverage: Coverage
    subject: Subject
    caches: list[Cache]
    places: dict[str, Index]
    """Cache -> where each of its bytes lies in its pages."""
    pages: dict[str, Bytes]
    objects: list[Bytes]
    slots: dict[str, Slot]

    @property
    def delayed(self) -> bool:
        """Whether work happens some time after it is enqueued."""

    @property
    def whole(self) -> bool:
        """Whether chunks hold all that hits inside of them need."""

    def ids_of(self, ids: dict[str, list[int]]) -> list[Sequence[int]]:
        """Return the block ids of each group."""

    def unchanged(self) -> bool:
        """Whether the memory holds the same as before the last call."""
