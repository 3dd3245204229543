"""A cache server in this process, and its clients: links without sockets, leases, reservations."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvproof.reference.cache_server import messages as m
from kvproof.reference.cache_server.arena import ArenaLost
from kvproof.reference.cache_server.client import CacheClient
from kvproof.reference.cache_server.connection import as_mapped
from kvproof.reference.cache_server.core import CacheServer, Settings, Witness
from kvproof.reference.cache_server.process import this_process
from kvproof.suites.reference.cache_server.contract_machine import Traits
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
    """The client sends nothing, but may go on copying."""
    gone: bool = False
    """The client does nothing any more."""
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


class LocalServer:
    def __init__(self, settings: Settings, *, witness: Callable[[], Witness] | None = None) -> None:
        self.settings = settings
        self.time = 0.0
        """Seconds; the only clock of the core."""
        self._witness = witness
        self._random = itertools.count(1)
        self.restart()

    def restart(self) -> None:
        """Begin anew with an empty arena; the old memory stays with the clients that mapped it."""
        self.arena = bytearray(self.settings.size)
        self.core = CacheServer(
            self.settings,
            generation=next(self._random),
            place=(this_process(), -1),
            witness=self._witness() if self._witness else None,
            now=lambda: self.time,
            random=lambda size: next(self._random).to_bytes(size, "little"),
        )

    def client(
        self,
        *,
        namespace: str = "",
        layout: bytes = b"",
        token: str = "",
        verify: bool = False,
        on_map: Callable[[memoryview], object] = as_mapped,
    ) -> CacheClient:
        """Return one more client."""
        return CacheClient(
            LocalLink(self), namespace=namespace, layout=layout, token=token, verify=verify,
            on_map=on_map,
        )  # fmt: skip


class LocalLink:
    address = "this process"

    def __init__(self, server: LocalServer) -> None:
        self._server = server
        self._waiting: list[bytes] = []
        self.lose = 0
        self.vain = 0
        """Waits for an answer when nothing was asked."""

    def send(self, frame: bytes) -> None:
        """See Link."""
        self._waiting.append(self._server.core.handle(frame))

    def receive(self, seconds: float) -> bytes | None:
        del seconds
        self.vain += not self._waiting
        answer = self._waiting.pop(0) if self._waiting else None
        if self.lose and answer is not None:
            self.lose -= 1
            return None
        return answer

    def reconnect(self) -> None:
        self._waiting.clear()

    def attach(self, welcome: m.Welcome, generation: int) -> memoryview:
        if generation != self._server.core.generation:
            raise ArenaLost("the cache server was restarted")
        return memoryview(self._server.arena)[: welcome.size]

    def close(self) -> None:
        """See Link."""


class LocalProvider:
    """The cache server and its client under the contract of all stores."""

    name = "cache server, in one process"

    def __init__(self) -> None:
        self.server = LocalServer(Settings(8192))
        self.traits = Traits(
            largest=800,
            capacity=2048,
            least_recent_first=True,
            restart=lambda: self.server.restart(),
        )

    def fresh(self, clients: int) -> Sequence[CacheClient]:
        """See Provider."""
        self.server = LocalServer(Settings(4096))
        return [self.server.client() for _ in range(clients)]
