"""Interface of a distributed store to an existing engine: five verbs over names and bytes.

Small on purpose, so that an engine is one file. `remote_redis` is one; S3 has the same verbs
(conditional put, list with sizes) and so has Mooncake's store.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from kvproof.reference.stores.object_store import Bytes


class BackendDown(Exception):
    """The engine did not answer in time, or not as this engine; whether it acted is unknown."""

    def __init__(self, reason: str, *, advice: str = "") -> None:
        super().__init__(reason)
        self.advice = advice
        """Remedy for the user; empty: none is known."""


class Kept(NamedTuple):
    """Answer of `set_many`."""

    taken: tuple[bool, ...]
    """In the order of the values: something is under the name now."""
    refusal: str
    """In the engine's words why others were not kept, for example that it is full."""


class Backend(Protocol):
    """One verb is one round trip; `until` is in seconds of `time.monotonic`.

    Each raises BackendDown, by `until` at the latest. The caller bounds the bytes that one call
    writes or returns. Foreign values are returned unchanged, or as b"" if they are not bytes: the
    reader checks them.
    """

    address: str
    """For messages; without secrets."""

    def get_many(self, names: Sequence[bytes], *, until: float) -> list[bytes | None]:
        """Read values; None: not there."""

    def set_many(self, values: Mapping[bytes, Bytes], *, until: float) -> Kept:
        """Keep values under names that are free; each is whole or not there (G7)."""

    def exists_many(self, names: Sequence[bytes], *, until: float) -> list[bool]:
        """Return which names are taken; changes nothing, also not the order of eviction."""

    def delete_many(self, names: Sequence[bytes], *, until: float) -> int:
        """Forget values; returns how many were there."""

    def scan(self, prefix: bytes, *, until: float) -> Iterator[tuple[bytes, int]]:
        """Names that begin with a prefix, and the bytes of their values; several round trips."""

    def close(self) -> None:
        """Let the connections go."""
