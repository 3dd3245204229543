"""LMCache's own server under the contract of object stores."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from kvproof.harness.isolation.handles import Handle
from kvproof.suites.framework.state_machine import explore
from kvproof.suites.reference.cache_server import contract_properties
from kvproof.suites.reference.cache_server.contract import contract_part, judge
from kvproof.suites.reference.cache_server.remote import FEW, TARGET, Client, Provider
from kvproof.suites.tests.cache_server import lmcache_kit
from kvproof.suites.tests.framework.suite_faults import UNSHRUNK

pytestmark = pytest.mark.slow(reason="runs an installed engine")

FEW_CASES = settings(UNSHRUNK, max_examples=6)


@pytest.fixture(scope="module")
def handle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Handle]:
    yield from lmcache_kit.opened(tmp_path_factory)


@pytest.fixture
def ask(handle: Handle) -> object:
    return lmcache_kit.asking(handle, "objects")


def test_the_contract_holds_and_no_lock_is_left(ask):
    provider = Provider(ask, objects=0)
    judge(provider, explore(contract_part(provider), FEW_CASES))
    (left,) = ask(("status", {}))
    assert (left["read_locked_count"], left["staging_object_count"]) == (0, 0)


def test_the_contract_holds_where_objects_find_no_room(ask):
    explored = explore(contract_part(Provider(ask, objects=FEW)), FEW_CASES)
    assert (explored.violation, explored.died) == (None, None)
    assert explored.situations[contract_properties.LEFT_OUT] > 10


def test_a_retrieve_for_an_engine_that_is_gone_leaves_no_lock(ask):
    """The path next to the one that keeps them gives its locks back."""
    (client,) = Provider(ask, objects=0).fresh(1)
    assert isinstance(client, Client)
    key = os.urandom(32)
    client.store({key: b"bytes"})
    named = client._named(key)
    found, well, _, left = ask(
        ("ask", named),
        ("take", {**named, "instance": 99, "ids": [[TARGET]]}),
        ("end", {"request": named["request"]}),
        ("rest", {}),
    )
    assert (found, well, left["read_locked_count"]) == (1, False, 0)
