"""Ten thousand operations of three hosts against a model, and the contract of object stores."""

from __future__ import annotations

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import settings

from kvproof.reference.stores.remote_counts import Held
from kvproof.reference.stores.remote_store import RemoteStore, connect
from kvproof.suites.framework.state_machine import explore
from kvproof.suites.reference.cache_server.contract import contract_part, judge
from kvproof.suites.reference.cache_server.contract_machine import Traits
from kvproof.suites.tests.cache_server.remote_kit import (
    PATIENCE_S,
    Server,
    content,
    key,
    name,
    needs_server,
    patient,
    serving,
)
from kvproof.suites.tests.framework.suite_faults import UNSHRUNK

pytestmark = needs_server

OPERATIONS = 10_000
KEYS = 40
SIZES = [random.Random(1).choice((0, 1, 100, 5_000, 70_000)) for _ in range(KEYS)]


@pytest.fixture
def server():
    with serving() as server:
        yield server


class Model:
    """What is at the server: epoch -> number -> whether it is whole; and what each host did."""

    def __init__(self, server: Server, hosts: list[RemoteStore], dice: random.Random) -> None:
        self.server = server
        self.hosts = hosts
        self.dice = dice
        self.there: dict[str, dict[int, bool]] = {}
        self.left: set[str] = set()
        self.leases: list = []
        self.done = Counter()

    def step(self) -> None:
        verbs = ("store", "store", "lookup", "acquire", "acquire", "drop", "damage", "rare")
        verb = self.dice.choice(verbs)
        verb = self.dice.choice(("clear", "status", "join", "restart")) if verb == "rare" else verb
        if verb == "restart" and self.dice.random() > 0.1:
            verb = "lookup"
        numbers = self.dice.choices(range(KEYS), k=self.dice.randint(1, 8))
        host = self.dice.choice(self.hosts)
        getattr(self, verb)(host, self.there.setdefault(host.epoch, {}), numbers)
        self.done[verb] += 1

    def store(self, host, there, numbers) -> None:
        objects = {key(n): content(n, SIZES[n]) for n in numbers}
        assert host.store(objects) == frozenset(objects)
        for n in numbers:
            there.setdefault(n, True)

    def lookup(self, host, there, numbers) -> None:
        assert host.lookup([*map(key, numbers)]) == [n in there for n in numbers]

    def acquire(self, host, there, numbers) -> None:
        before = host.counts.dropped
        lease = host.acquire([*map(key, numbers)])
        expected = [content(n, SIZES[n]) if there.get(n) else None for n in numbers]
        assert [None if v is None else bytes(v) for v in lease.views] == expected
        broken = {n for n in numbers if there.get(n) is False}
        assert host.counts.dropped - before == len(broken)
        for n in broken:
            del there[n]
        self.leases.append((lease, expected))
        if len(self.leases) > 20:
            self.check_a_lease()

    def check_a_lease(self) -> None:
        """Its bytes are those of then, whatever happened since."""
        lease, expected = self.leases.pop(self.dice.randrange(len(self.leases)))
        assert [None if v is None else bytes(v) for v in lease.views] == expected
        lease.release()

    def drop(self, host, there, numbers) -> None:
        gone = {n for n in numbers if there.pop(n, None) is not None}
        assert host.drop([*map(key, numbers)]) == len(gone)

    def damage(self, host, there, numbers) -> None:
        with self.server.client() as client:
            for n in set(numbers[:2]):
                value = client.get(name(n, epoch=host.epoch)) or b""
                client.set(name(n, epoch=host.epoch), self.spoiled(value))
                there[n] = False

    def spoiled(self, value: bytes) -> bytes:
        at = self.dice.randrange(len(value) + 1)
        flipped = value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :] if value[at:] else b"x"
        # The header's last zeros are no part of what it says.
        flipped = b"y" if 56 <= at < 64 else flipped
        return self.dice.choice((value[:at] if value[at:] else value + b"z", flipped))

    def clear(self, host, there, numbers) -> None:
        old = host.epoch
        assert host.clear() == len(there)
        assert host.epoch not in self.there
        assert host.epoch != old

    def status(self, host, there, numbers) -> None:
        status = host.status()
        assert status.objects == len(there)
        if all(there.values()):
            assert status.bytes == sum(SIZES[n] for n in there)

    def join(self, host, there, numbers) -> None:
        """Hosts are given one epoch, so that they share again."""
        host.epoch = self.dice.choice(self.hosts).epoch

    def restart(self, host, there, numbers) -> None:
        self.server.kill()
        self.server.start()
        self.there.clear()


@pytest.mark.slow(reason="explores until every situation occurs")
def test_ten_thousand_operations_answer_like_a_model(server):
    hosts = [connect(server.url, patient(batch_bytes=size)) for size in (1, 20_000, 8 << 20)]
    model = Model(server, hosts, random.Random(20261121))
    for _ in range(OPERATIONS):
        model.step()
    assert sum(model.done.values()) == OPERATIONS
    assert min(model.done.values()) > 10, model.done
    for host in hosts:
        assert host.counts.failed == host.counts.skipped == host.counts.refused == 0
        assert min(host.counts[:4]) > 100, "hits, misses, damaged and stored objects all occurred"
        host.close()


def test_threads_of_one_host_do_not_disturb_each_other(server):
    def work(number: int) -> int:
        dice, right = random.Random(number), 0
        for _ in range(150):
            numbers = dice.sample(range(KEYS), 5)
            store.store({key(n): content(n, SIZES[n]) for n in numbers})
            with store.acquire([*map(key, numbers)]) as lease:
                found = [None if view is None else bytes(view) for view in lease.views]
            expected = [content(n, SIZES[n]) for n in numbers]
            assert all(one in (None, other) for one, other in zip(found, expected, strict=True))
            right += found.count(None) == 0
            store.drop([key(numbers[0])])
        return right

    with connect(server.url, patient()) as store:
        with ThreadPoolExecutor(8) as threads:
            assert sum(threads.map(work, range(8))) > 100
        assert store.status().pinned == 0
        assert store.counts.failed == store.counts.dropped == 0


class Together(RemoteStore):
    """One of several processes of one host: they leave an epoch together."""

    others: tuple[Together, ...] = ()

    def clear(self) -> int:
        count = super().clear()
        for other in self.others:
            other.epoch = self.epoch
        return count

    def status(self):
        held = {key for each in self.others for key in each._held._leases}
        return super().status()._replace(pinned=len(held))


class Redis:
    """A provider for the contract."""

    name = "redis"

    def __init__(self, server: Server) -> None:
        self._server = server
        self._clients: tuple[Together, ...] = ()
        self.traits = Traits(largest=4096, restart=self._restart)

    def fresh(self, clients: int) -> tuple[Together, ...]:
        from kvproof.reference.stores.remote_address import parse
        from kvproof.reference.stores.remote_redis import RedisBackend

        self._close()
        with self._server.client() as client:
            client.flushall()
        address = parse(self._server.url)
        made = (
            Together(RedisBackend(address, timeout_s=PATIENCE_S), patient()) for _ in range(clients)
        )
        self._clients = tuple(made)
        for client in self._clients:
            client.others = self._clients
        return self._clients

    def _close(self) -> None:
        for client in self._clients:
            client.close()

    def _restart(self) -> None:
        self._server.kill()
        self._server.start()
        for client in self._clients:
            client._held = Held()  # the contract does not count leases of before, which still hold


def test_the_contract_of_object_stores_holds(server):
    provider = Redis(server)
    explored = explore(contract_part(provider), settings(UNSHRUNK, max_examples=25))
    provider._close()
    judge(provider, explored)
