"""A request that holds blocks, as the log of its cache knows it."""

from __future__ import annotations

from typing import NamedTuple

from kvproof.harness.recorder.codec import TokenChain
from kvproof.harness.recorder.tables import Tables


class Arrival(NamedTuple):
    """The inputs that determine the content of a request besides its tokens."""

    name: str
    adapter: str | None = None
    adapter_version: str | None = None
    salt: str | None = None
    spans: tuple[tuple[str, int, int, str], ...] = ()
    """(kind, start, length, content)."""
    read: bool = True
    """False: it may not hit anything, for example because it wants log-probabilities."""
    store: bool = True
    resumed: bool = False


class Entry:
    """A request that holds blocks."""

    __slots__ = (
        "arrival",
        "chain",
        "logged",
        "next",
        "number",
        "pending",
        "seen",
        "stop",
        "table",
        "tables",
        "written",
    )

    def __init__(self, number: int, arrival: Arrival, chain: TokenChain | None) -> None:
        self.number, self.arrival, self.chain = number, arrival, chain
        self.written: list[int] = []
        """Tokens as they were written, if it takes long to hash them again."""
        self.logged = self.stop = self.seen = 0
        """Tokens written; positions written as computed; positions computed."""
        self.next = 0
        """Positions computed, of which the step is written: they fill the next block."""
        self.table: list[int] = []
        self.tables: Tables = ()
        """Those of several groups; `table` is of one."""
        self.pending: list[int] = []
