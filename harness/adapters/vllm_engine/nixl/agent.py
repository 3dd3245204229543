"""The module `nixl._api`: agents that move bytes between caches of this process."""

from __future__ import annotations

import ctypes
import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any
from weakref import WeakValueDictionary

from kvproof.harness.whole_engine.linked.wire import Copy, Endpoint, Piece, Wire

_AGENTS: WeakValueDictionary[str, Agent] = WeakValueDictionary()
_LOCAL = "NIXL_INIT_AGENT"
_STATES = {"under way": "PROC", "done": "DONE", "failed": "ERR"}


@dataclass(frozen=True)
class _Regions:
    """Descriptors of an agent's memory: (address, bytes) each."""

    agent: str
    places: Sequence[tuple[int, int]]


@dataclass
class _Handle:
    """A transfer that was prepared; under way once it has a copy."""

    reads: bool
    local: Sequence[tuple[int, int]]
    remote: Sequence[tuple[int, int]]
    peer: str
    message: bytes
    copy: Copy | None = None


class Agent:
    """One worker's agent, by the names that vLLM calls."""

    def __init__(self, name: str, config: object = None) -> None:
        del config
        self.name = name
        self.wire: Wire | None = None
        self.end: Endpoint | None = None
        self.caches: Sequence[tuple[Any, int]] = ()
        """Tensors of layers, and kernel blocks of a block."""
        self._numbers = itertools.count(1)
        self._regions: dict[int, _Regions] = {}
        self._handles: dict[int, _Handle] = {}
        _AGENTS[name] = self

    def join(self, wire: Wire, end: Endpoint, caches: Sequence[tuple[Any, int]]) -> None:
        """Become reachable over a wire."""
        self.wire, self.end, self.caches = wire, end, caches

    def block(self, address: int) -> int:
        """Return the block of the engine in which an address lies. Raises LookupError."""
        for cache, ratio in self.caches:
            stride = cache.stride(0) * cache.element_size()
            kernel = (address - cache.data_ptr()) // stride
            if 0 <= kernel < cache.shape[0]:
                return int(kernel) // ratio
        raise LookupError(f"address {address} lies in no cache of {self.name}")

    # what vLLM registers

    def create_backend(self, *_: object) -> None:
        """There is one."""

    def get_reg_descs(self, descs: Any, mem_type: str = "") -> Any:
        """Return the argument of `register_memory`."""
        return mem_type, list(descs)

    def register_memory(self, descs: Any, backends: object = None) -> None:
        """All memory of this process can be read."""

    def deregister_memory(self, descs: Any) -> None:
        """As above."""

    def get_agent_metadata(self) -> bytes:
        """Return the data that a peer needs to reach this agent."""
        return self.name.encode()

    def add_remote_agent(self, metadata: bytes) -> str:
        """Return a peer's name."""
        return metadata.decode()

    def remove_remote_agent(self, name: str) -> None:
        """Peers are found by name."""

    def check_remote_metadata(self, name: str, *_: object) -> bool:
        """Tell whether a peer is known."""
        return name in _AGENTS

    def prep_xfer_dlist(self, agent: str, descs: Any, mem_type: str = "") -> int:
        """Keep rows (address, bytes, device, stride, count), and return a handle."""
        del mem_type
        places = [
            (address + at * stride, size)
            for address, size, _, stride, count in descs.astype("int64").tolist()
            for at in range(count)
        ]
        number = next(self._numbers)
        self._regions[number] = _Regions(self.name if agent == _LOCAL else agent, places)
        return number

    def release_dlist_handle(self, number: int) -> None:
        """Forget descriptors."""
        self._regions.pop(number, None)

    # transfers

    def make_prepped_xfer(
        self,
        operation: str,
        local: int,
        local_ids: Any,
        remote: int,
        remote_ids: Any,
        notif_msg: bytes = b"",
    ) -> int:
        """Prepare a transfer of descriptors, pair by pair."""
        mine, theirs = self._regions[local], self._regions[remote]
        number = next(self._numbers)
        self._handles[number] = _Handle(
            operation == "READ",
            [mine.places[int(at)] for at in local_ids],
            [theirs.places[int(at)] for at in remote_ids],
            theirs.agent,
            notif_msg,
        )
        return number

    def transfer(self, number: int) -> str:
        """Start a transfer; its message follows it."""
        handle = self._handles[number]
        peer = _AGENTS[handle.peer]
        assert self.wire is not None
        wire, message = self.wire, handle.message
        source, target = (peer, self) if handle.reads else (self, peer)
        pairs = zip(handle.remote, handle.local, strict=True)
        assert source.end is not None
        assert target.end is not None
        request = message.decode().rpartition(":")[0]
        handle.copy = wire.copy(
            request,
            source.end,
            target.end,
            [_piece(source, target, *(pair if handle.reads else pair[::-1])) for pair in pairs],
            then=partial(wire.follow, self.name, handle.peer, message, request)
            if message
            else _nothing,
        )
        return "PROC"

    def check_xfer_state(self, number: int) -> str:
        """End the copies that are due, and return the state of a transfer."""
        copy = self._handles[number].copy
        assert copy is not None
        peer = _AGENTS[self._handles[number].peer]
        for agent in (self, peer):
            assert agent.end is not None
            agent.end.device.due_transfers()
        return _STATES[copy.state]

    def release_xfer_handle(self, number: int) -> None:
        """Forget a transfer that has ended. Raises RuntimeError for others."""
        handle = self._handles.get(number)
        if handle and handle.copy and handle.copy.state == "under way":
            raise RuntimeError(f"transfer {number} is under way")
        self._handles.pop(number, None)

    def get_xfer_telemetry(self, number: int) -> Any:
        """Return figures of a transfer; they are not judged."""
        del number
        names = ("startTime", "postDuration", "xferDuration", "totalBytes", "descCount")
        return SimpleNamespace(**dict.fromkeys(names, 1))

    # messages

    def send_notif(self, agent: str, notif_msg: bytes = b"") -> None:
        """Send a message."""
        assert self.wire is not None
        self.wire.send(self.name, agent, notif_msg)

    def get_new_notifs(self) -> dict[str, list[bytes]]:
        """Return the messages that have arrived; heartbeats renew leases."""
        if self.wire is None:
            return {}
        found = self.wire.take(self.name)
        for message in itertools.chain(*found.values()):
            if message.startswith(b"HB:"):
                for name in message[3:].decode().split(","):
                    self.wire.renew(name, RENEWED_S, self.name)
        return found


LEASE_S = 30
"""The connector's default."""
RENEWED_S = LEASE_S * 2 // 3


def _piece(source: Agent, target: Agent, read: tuple[int, int], written: tuple[int, int]) -> Piece:
    if read[1] != written[1]:
        raise ValueError(f"{read[1]} bytes are read, {written[1]} are written")
    move = partial(ctypes.memmove, written[0], read[0], read[1])
    return Piece(source.block(read[0]), target.block(written[0]), move)


def _nothing() -> None:
    pass


def install() -> None:
    """Make the module importable, once."""
    if "nixl" in sys.modules:
        return
    package, api, bindings = (ModuleType(name) for name in ("nixl", "nixl._api", "nixl._bindings"))
    package.__path__ = []
    for module in (package, api, bindings):
        module.__spec__ = ModuleSpec(module.__name__, None)  # so `find_spec` finds it
    vars(api).update(nixl_agent=Agent, nixl_agent_config=SimpleNamespace)
    vars(bindings).update(nixlXferTelemetry=SimpleNamespace)
    sys.modules.update({"nixl": package, "nixl._api": api, "nixl._bindings": bindings})
