"""The cache server keeps the contract of all stores, in one process and through sockets."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from kvproof.reference.cache_server import answers, connection
from kvproof.reference.cache_server.core import Settings
from kvproof.suites.framework.state_machine import explore
from kvproof.suites.reference.cache_server.contract import contract_part, judge
from kvproof.suites.reference.cache_server.local import LocalProvider, LocalServer
from kvproof.suites.reference.cache_server.model import content, key
from kvproof.suites.tests.framework.suite_faults import UNSHRUNK


@pytest.mark.nightly(reason="others of its kind run before each merge")
@pytest.mark.slow(reason="explores until every situation occurs")
def test_the_cache_server_keeps_the_contract():
    provider = LocalProvider()
    judge(provider, explore(contract_part(provider), UNSHRUNK))


def test_more_objects_than_one_message_names():
    server = LocalServer(Settings(1 << 20))
    with server.client() as client:
        objects = {key(number): content(key(number), 1) for number in range(9_000)}
        assert client.store(objects) == set(objects)
        assert client.lookup(list(objects)) == [True] * 9_000
        with client.acquire(list(objects)) as lease:
            assert [bytes(view) for view in lease.views] == list(objects.values())
            assert client.drop(list(objects)[:5_000]) == 5_000
        assert (client.clear(), client.status().objects) == (4_000, 0)


def test_an_answer_counts_however_late_the_client_runs_again(monkeypatch):
    with LocalServer(Settings(1 << 20)).client() as client:
        clock = itertools.count(0, 60)
        later = SimpleNamespace(monotonic=lambda: float(next(clock)))
        monkeypatch.setattr(connection, "time", later)
        assert client.store({key(1): b"1"}) == {key(1)}


def test_what_one_client_may_not_hold_finds_no_room(monkeypatch):
    monkeypatch.setattr(answers, "MOST_HELD", 5_000)
    server = LocalServer(Settings(1 << 20))
    with server.client() as client:
        stored = client.store({key(number): b"1" for number in range(9_000)})
        assert len(stored) == 4_096
        assert client.report().reserved == 0
