"""The suite `objects`: the contract of object stores, on the cache server and on targets.

The target provides a server that stores the content of an engine's blocks by token prefix. Here an
object is the one block of a chunk of 16 tokens, the 16 half-words of its key. A client is an engine
with pages of its own, and a page begins with the size of the object. A lease is a private copy. The
calls are those of the suite `prefixes`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any

from kvproof.reference.stores.object_store import Bytes, Lease, ObjectStore, StoreStatus
from kvproof.suites.framework.component_suite import (
    Arguments,
    Config,
    Draw,
    RemoteCalls,
    TargetProvided,
)
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.cache_server.contract import contract_part
from kvproof.suites.reference.cache_server.contract_machine import StoreContractMachine, Traits
from kvproof.suites.reference.cache_server.local import LocalProvider

TOKENS = 16
"""Tokens of a chunk, and of a block."""
ROW = 512
PAGE = TOKENS * ROW
"""Bytes of a block."""
SIZE = struct.Struct("<Q")
SOURCE, TARGET, BLOCKS = 1, 2, 3
"""Blocks of an engine; block 0 is the null block."""
LARGEST = 4096
FEW = 5
"""Number of objects that fit in a small store."""
_WITHOUT = {
    "the_status_counts_what_is_there": "objects are counted in whole pages, with what is reserved"
}


class Client:
    """An ObjectStore that is one engine of the target's server."""

    def __init__(self, ask: RemoteCalls, instance: int) -> None:
        self._ask = ask
        self._instance = instance
        self._requests = map(f"engine-{instance}-request-{{}}".format, count())
        table = {"blocks": BLOCKS, "block": TOKENS, "row": ROW, "window": -1, "type": "bfloat16"}
        ask(("engine", {"instance": instance, "tables": [table]}))

    def store(self, objects: Mapping[bytes, Bytes]) -> frozenset[bytes]:
        """Compute each object in a block, and store the block."""
        return frozenset(key for key, payload in objects.items() if self._stored(key, payload))

    def _stored(self, key: bytes, payload: Bytes) -> bool:
        data = SIZE.pack(memoryview(payload).nbytes) + bytes(payload)
        named = self._named(key)
        blocks = {str(SOURCE): data.ljust(PAGE, b"\0").hex()}
        _, (well, kept), *_ = self._ask(
            ("write", {"instance": self._instance, "table": 0, "blocks": blocks}),
            ("store", {"ids": [[SOURCE]], **named}),
            ("rest", {}),
            ("end", {"request": named["request"]}),
            ("fill", {"instance": self._instance, "byte": 0xAB}),
        )
        return bool(well) and (kept == [True] or self.lookup([key]) == [True])

    def lookup(self, keys: Sequence[bytes]) -> list[bool]:
        """Look objects up, and release the locks of those found."""
        return list(map(bool, self._ask(*(("found", self._named(key)) for key in keys))))

    def acquire(self, keys: Sequence[bytes]) -> Lease:
        """Copy each found object into a block, one after the other."""
        found = {key: self._retrieved(key) for key in dict.fromkeys(keys)}
        views = [found[key] for key in keys]
        return Lease([None if view is None else memoryview(view) for view in views])

    def _retrieved(self, key: bytes) -> bytes | None:
        named = self._named(key)
        end = ("end", {"request": named["request"]})
        found, _ = self._ask(("ask", named), ("fill", {"instance": self._instance, "byte": 0xAB}))
        if not found:
            self._ask(end)
            return None
        well, _, _, (data,) = self._ask(
            ("take", {"ids": [[TARGET]], **named}),
            ("rest", {}),
            end,
            ("read", {"instance": self._instance, "table": 0, "blocks": [TARGET]}),
        )
        page = bytes.fromhex(data)
        (size,) = SIZE.unpack_from(page)
        return page[SIZE.size : SIZE.size + size] if well else None

    def drop(self, keys: Iterable[bytes]) -> int:
        """Delete objects that no other engine is reading."""
        calls = [("delete", {"part": 0, **self._named(key)}) for key in dict.fromkeys(keys)]
        return sum(deleted for deleted, _ in self._ask(*calls))

    def clear(self) -> int:
        """Delete all objects."""
        (count_,) = self._ask(("clear", {}))
        return int(count_)

    def status(self) -> StoreStatus:
        (reported,) = self._ask(("status", {}))
        names = ("total_object_count", "memory_used_bytes", "memory_total_bytes",
                 "read_locked_count")  # fmt: skip
        return StoreStatus(*(reported[name] for name in names))

    def _named(self, key: bytes) -> Arguments:
        tokens = list(struct.unpack("<16H", key))
        chunk = {"tokens": tokens, "start": 0, "end": TOKENS}
        return {"instance": self._instance, "request": next(self._requests), **chunk}


class Provider:
    """A server of the target; `objects`: room for so many and no eviction, 0: room for all."""

    name = "what the target offers"

    def __init__(self, ask: RemoteCalls, *, objects: int) -> None:
        self._ask = ask
        self._options = {
            "room": objects * PAGE or 64 << 20,
            "eviction": "noop" if objects else "LRU",
            "separate": True,
        }
        # capacity counts the smallest objects that certainly fit
        self.traits = Traits(largest=LARGEST, capacity=objects, leases_hold=False, counts=False)

    def fresh(self, clients: int) -> Sequence[ObjectStore]:
        """See Provider of the contract."""
        self._ask(("open", self._options))
        return [Client(self._ask, number + 1) for number in range(clients)]


def offered(ask: RemoteCalls) -> TargetProvided:
    contract = contract_part(Provider(ask, objects=0))

    def profile(room: int, draw: Draw) -> Config:
        config = contract.draw_config(draw)
        assert isinstance(config, dict), "it has no row"
        return {**config, "room": room}

    def machine(config: Config, coverage: Coverage) -> Any:
        return StoreContractMachine(Provider(ask, objects=config["room"]), config, coverage)

    part = contract._replace(
        name="objects", machine=machine, profiles=(partial(profile, 0), partial(profile, FEW))
    )
    return TargetProvided(part, _WITHOUT)


SUITE = contract_part(LocalProvider())._replace(name="objects", target_provided=offered)
