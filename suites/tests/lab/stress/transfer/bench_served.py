"""The same blocks through a cache server in a process of its own, for the benchmark."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from kvproof.reference.cache_server.client import CacheClient
from kvproof.reference.transfer.grouped import Transfer
from kvproof.reference.transfer.host_object import HostObject
from kvproof.suites.tests.lab.stress.cache_server.process import ServerProcess

Work = Callable[[], None]


def installed() -> bool:
    """Return whether a server can be started here."""
    return find_spec("zmq") is not None


@contextmanager
def serving(transfer: Transfer, ids: Sequence[int], chunks: int) -> Iterator[dict[str, Work]]:
    """Yield store and retrieve, messages included, while the server runs."""
    room = chunks * transfer.layout.nbytes + (1 << 20)
    with (
        tempfile.TemporaryDirectory() as folder,
        ServerProcess(Path(folder), size=room) as server,
        server.client() as client,
    ):
        keys = [number.to_bytes(32, "little") for number in range(chunks)]
        yield {
            "server store": lambda: _store(transfer, client, keys, ids),
            "server retrieve": lambda: _retrieve(transfer, client, keys, ids),
        }


def _store(
    transfer: Transfer, client: CacheClient, keys: Sequence[bytes], ids: Sequence[int]
) -> None:
    """Reserve, write, commit; objects of an earlier turn are dropped first."""
    client.drop(keys)
    with client.reserve(dict.fromkeys(keys, transfer.layout.nbytes)) as room:
        transfer.store([ids], [HostObject.over(transfer.layout, room.views[key]) for key in keys])
    assert len(room.stored) == len(keys), f"{len(room.stored)} of {len(keys)} objects were stored"


def _retrieve(
    transfer: Transfer, client: CacheClient, keys: Sequence[bytes], ids: Sequence[int]
) -> None:
    with client.acquire(keys) as lease:
        views = [view for view in lease.views if view is not None]
        transfer.retrieve([ids], [HostObject.over(transfer.layout, view) for view in views])
