"""The objects of one host in an engine that other hosts use too (H6).

After construction nothing here raises because of the server: an unreadable object counts as
missing, and an object that cannot be stored is skipped. Failures are counted, and their beginning
and end are logged.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

from kvproof.reference.core.validation import ConfigError
from kvproof.reference.stores.object_format import HEADER_BYTES, header, payload_of
from kvproof.reference.stores.object_store import KEY_BYTES, Bytes, Lease, StoreStatus
from kvproof.reference.stores.remote_address import parse, password
from kvproof.reference.stores.remote_backend import Backend, BackendDown
from kvproof.reference.stores.remote_breaker import Breaker
from kvproof.reference.stores.remote_config import RemoteConfig
from kvproof.reference.stores.remote_counts import Copies, Held, RemoteCounts, Tally

LOG = logging.getLogger("kvproof.reference")
NAMES = 1024
"""Asked about at once."""
FIRST_GUESS = 1 << 20
"""Bytes of a value, before one has been seen."""


class RemoteUnusable(ConnectionError):
    """The first contact with a server failed; the message names the server and the remedy."""


class RemoteStore:
    """An ObjectStore over a Backend; for several threads. No call takes longer than `timeout_s`.

    A call is one round trip, of a store two (names cost less than bytes), or one for every
    `batch_bytes` of values. At the timeout the finished part counts. A lease holds copies, so
    changes at the server do not affect it, a `drop` by this host included.
    """

    def __init__(self, backend: Backend, config: RemoteConfig | None = None) -> None:
        """Connect. Raises RemoteUnusable with the reason if that fails."""
        self.config = config or RemoteConfig()
        self.epoch = self.config.epoch
        self._backend = backend
        failures, backoff_s = self.config.failures, self.config.backoff_s
        self._answers = Breaker(failures=failures, backoff_s=backoff_s)
        self._room = Breaker(failures=1, backoff_s=backoff_s)
        self._tally = Tally()
        self._held = Held()
        self._largest = FIRST_GUESS
        self._make_contact()

    def _make_contact(self) -> None:
        try:
            self._backend.exists_many([self._name(bytes(KEY_BYTES))], until=self._deadline())
        except BackendDown as error:
            self._backend.close()
            text = f"{self._backend.address} cannot be used: {error}"
            raise RemoteUnusable(f"{text} ({error.advice})" if error.advice else text) from None

    def store(self, objects: Mapping[bytes, Bytes]) -> frozenset[bytes]:
        """Send the objects that are not there yet; existing values are checked when read."""
        kept: set[bytes] = set()
        self._try(lambda until: self._send(objects, kept, until))
        return frozenset(kept)

    def lookup(self, keys: Sequence[bytes]) -> list[bool]:
        """Return which names are taken; a lease may still find their values invalid."""
        there: list[bool] = []
        self._try(lambda until: there.extend(self._taken(keys, until)))
        return there + [False] * (len(keys) - len(there))

    def acquire(self, keys: Sequence[bytes]) -> Lease:
        """Read whole objects (G7); drop and count invalid values under their names (H6)."""
        found: dict[bytes, memoryview] = {}
        self._try(lambda until: self._read([*dict.fromkeys(keys)], found, until))
        had = sum(key in found for key in keys)
        self._tally.add(hits=had, misses=len(keys) - had)
        return Copies(found, keys, self._held)

    def drop(self, keys: Iterable[bytes]) -> int:
        """Remove objects, for all hosts of this epoch; returns how many were there."""
        gone = 0

        def delete(until: float) -> None:
            nonlocal gone
            for some in _some([*map(self._name, dict.fromkeys(keys))]):
                gone += self._backend.delete_many(some, until=until)

        self._try(delete)
        if gone:
            self._has_room()
        return gone

    def clear(self) -> int:
        """Leave this epoch for a new one of this host alone; other hosts keep the objects (H6).

        Returns the number of objects left, as far as they could be counted in time. Hosts share
        again once they get one `epoch`.
        """
        left, self.epoch = self.epoch, secrets.token_hex(16)
        count = self._sizes(left)
        LOG.info(
            "%s: left epoch %s with %d objects, which stay for other hosts; the new epoch is %s",
            *(self._backend.address, left, len(count), self.epoch),
        )
        return len(count)

    def status(self) -> StoreStatus:
        """Count this epoch's objects, of all hosts; reads every name of the database."""
        sizes = self._sizes(self.epoch)
        payload = sum(max(size - HEADER_BYTES, 0) for size in sizes)
        return StoreStatus(len(sizes), payload, 0, len(self._held))

    @property
    def counts(self) -> RemoteCounts:
        """Counts until now."""
        return self._tally.snapshot()

    @property
    def is_left_alone(self) -> bool:
        """Return whether calls skip the server because it did not answer."""
        return self._answers.is_open

    def close(self) -> None:
        """Let the connections go."""
        self._backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _try(self, work: Callable[[float], None]) -> None:
        """Run one call until its deadline, unless the breaker is open."""
        if not self._answers.allows():
            self._tally.add(skipped=1)
            return
        try:
            work(self._deadline())
        except BackendDown as error:
            self._tally.add(failed=1)
            if self._answers.failed():
                wait = self._answers.backoff_s
                text = "%s does not answer: %s; objects there are missed, next attempt in %g s"
                LOG.warning(text, self._backend.address, error, wait)
        else:
            if self._answers.succeeded():
                LOG.warning("%s answers again", self._backend.address)

    def _send(self, objects: Mapping[bytes, Bytes], kept: set[bytes], until: float) -> None:
        keys = list(objects)
        there = self._taken(keys, until)
        kept.update(key for key, taken in zip(keys, there, strict=True) if taken)
        new = [key for key in keys if key not in kept]
        small = [key for key in new if _size(objects[key]) <= self.config.largest_object]
        self._tally.add(refused=len(new) - len(small))
        for batch in self._batches({key: objects[key] for key in small}):
            if not self._room.allows():
                break
            self._keep(batch, kept, until)
        self._tally.add(refused=sum(key not in kept for key in small))

    def _keep(self, batch: Mapping[bytes, Bytes], kept: set[bytes], until: float) -> None:
        values = {
            self._name(key): b"".join((header(key, payload), payload))
            for key, payload in batch.items()
        }
        answer = self._backend.set_many(values, until=until)
        sent = [key for key, taken in zip(batch, answer.taken, strict=True) if taken]
        kept.update(sent)
        self._tally.add(stored=len(sent))
        if not answer.refusal:
            self._has_room()
        elif self._room.failed():
            text = "%s keeps no more: %s; next attempt in %g s"
            LOG.warning(text, self._backend.address, answer.refusal, self._room.backoff_s)

    def _has_room(self) -> None:
        if self._room.succeeded():
            LOG.warning("%s is asked to keep objects again", self._backend.address)

    def _batches(self, objects: Mapping[bytes, Bytes]) -> Iterator[dict[bytes, Bytes]]:
        batch: dict[bytes, Bytes] = {}
        room = self.config.batch_bytes
        for key, payload in objects.items():
            if batch and _size(payload) > room:
                yield batch
                batch, room = {}, self.config.batch_bytes
            batch[key] = payload
            room -= _size(payload)
        if batch:
            yield batch

    def _read(self, keys: list[bytes], found: dict[bytes, memoryview], until: float) -> None:
        begin = 0
        while begin < len(keys):
            most = max(1, min(NAMES, self.config.batch_bytes // self._largest))
            some = keys[begin : begin + most]
            values = self._backend.get_many([*map(self._name, some)], until=until)
            self._largest = max((len(value) for value in values if value), default=self._largest)
            self._open(dict(zip(some, values, strict=True)), found, until)
            begin += most

    def _open(
        self, values: Mapping[bytes, bytes | None], found: dict[bytes, memoryview], until: float
    ) -> None:
        broken = []
        for key, value in values.items():
            payload = None if value is None else payload_of(key, value)
            if payload is not None:
                found[key] = payload
            elif value is not None:
                broken.append(self._name(key))
        if broken:
            self._tally.add(dropped=len(broken))
            LOG.warning("%s: %d objects were not whole", self._backend.address, len(broken))
            self._backend.delete_many(broken, until=until)

    def _taken(self, keys: Sequence[bytes], until: float) -> list[bool]:
        names = [*map(self._name, keys)]
        steps = (self._backend.exists_many(some, until=until) for some in _some(names))
        return [taken for step in steps for taken in step]

    def _sizes(self, epoch: str) -> list[int]:
        """Return the counted bytes of the values of an epoch."""
        sizes: list[int] = []
        prefix = f"{self.config.prefix}:{epoch}:".encode()

        def scan(until: float) -> None:
            for _, size in self._backend.scan(prefix, until=until):
                sizes.append(size)

        self._try(scan)
        return sizes

    def _name(self, key: bytes) -> bytes:
        return f"{self.config.prefix}:{self.epoch}:{key.hex()}".encode()

    def _deadline(self) -> float:
        return time.monotonic() + self.config.timeout_s


def connect(
    url: str, config: RemoteConfig | None = None, *, password_file: str | Path = ""
) -> RemoteStore:
    """Make a store over a Redis or Valkey server, for example at redis://127.0.0.1:6379/0.

    The password comes from `password_file` or from the environment. Raises ConfigError for unusable
    arguments or a missing package, and RemoteUnusable for an unusable server.
    """
    address, config = parse(url), config or RemoteConfig()
    try:
        from kvproof.reference.stores.remote_redis import RedisBackend
    except ImportError as error:
        raise ConfigError(f"{error.name} is not installed: pip install 'kvproof[redis]'") from None
    secret = password(password_file)
    return RemoteStore(RedisBackend(address, password=secret, timeout_s=config.timeout_s), config)


def _size(payload: Bytes) -> int:
    return memoryview(payload).nbytes


def _some(names: list[bytes]) -> Iterator[list[bytes]]:
    for begin in range(0, len(names), NAMES):
        yield names[begin : begin + NAMES]
