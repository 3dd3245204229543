"""The cache server keeps the contract of all stores, in one process and through sockets."""

from __future__ import annotations

from kvproof.suites.part_machine import explore
from kvproof.suites.store.contract import contract_part, judge
from kvproof.suites.store.local import LocalProvider
from kvproof.suites.tests.part_faults import UNSHRUNK


def test_the_cache_server_keeps_the_contract():
    provider = LocalProvider()
    judge(provider, explore(contract_part(provider), UNSHRUNK))
