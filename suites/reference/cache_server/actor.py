"""Clients of a machine: their leases and reservations, and how they end."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvproof.reference.cache_server import messages as m
from kvproof.reference.cache_server.client import CacheClient
from kvproof.suites.reference.cache_server.local import LocalLink
from kvproof.suites.reference.cache_server.model import Copy, Holding, Life, Room


class ProcessWitness:
    def __init__(self) -> None:
        self.provable = True
        self.sessions: list[bytes] = []
        """Sessions of the last hello at the end."""

    def watch(self, session: bytes, process: m.Process, peer: object) -> tuple[int, bool]:
        """See Witness."""
        del peer
        self.sessions.append(session)
        return process.pid, self.provable

    def forget(self, session: bytes) -> None:
        self.sessions.remove(session)


@dataclass(eq=False)
class Actor:
    client: CacheClient
    link: LocalLink
    space: str
    provable: bool
    session: bytes = b""
    """The session id of the server."""
    stopped: bool = False
    """It sends nothing, but may go on copying."""
    gone: bool = False
    """It does nothing any more."""
    rooms: list[Room] = field(default_factory=list)
    holdings: list[Holding] = field(default_factory=list)

    @property
    def acts(self) -> bool:
        return not (self.stopped or self.gone)

    @property
    def held(self) -> list[Life]:
        leased = [
            life
            for holding in self.holdings
            if not holding.void
            for life in dict.fromkeys(holding.lives)
        ]
        kept = [life for room in self.rooms if not room.void for life in room.present.values()]
        return [life for life in (*kept, *leased) if life is not None]

    @property
    def copies(self) -> list[Copy]:
        """Copies into its reservations on the present server."""
        return [copy for room in self.rooms if not room.void for copy in room.copies]
