"""LMCache as a target: what it claims, and how it is judged."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kvproof.harness.contract.target import Request, TargetConfig
from kvproof.harness.errors import TargetDied
from kvproof.harness.isolation.handles import Handle
from kvproof.suites.framework import expected_failures
from kvproof.suites.framework.property import LEVELS, Level
from kvproof.suites.runner import levels
from kvproof.suites.runner.levels import property_names
from kvproof.suites.tests.adapters.engine_kit import DRIFT
from kvproof.suites.tests.cache_server import lmcache_kit
from kvproof.suites.tests.patience import LONG

pytestmark = pytest.mark.slow(reason="runs an installed engine")

OFFERED = {"hits", "transfer", "objects", "prefixes"}


@pytest.fixture(scope="module")
def handle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Handle]:
    yield from lmcache_kit.opened(tmp_path_factory)


def test_the_installed_engine_is_what_the_adapter_expects(handle: Handle) -> None:
    assert handle.profile.version == "0.5.6"
    assert handle.run_job(DRIFT, {"engine": "lmcache"}, timeout=LONG) == {"differences": []}


def test_a_changed_signature_is_named(handle: Handle) -> None:
    changed = {"engine": "lmcache", "changed": {"Lookup.end_session": "self name"}}
    expected = "Lookup.end_session(self request_id), expected (self name)"
    assert handle.run_job(DRIFT, changed, timeout=LONG) == {"differences": [expected]}


def test_it_offers_no_block_manager(handle: Handle) -> None:
    target = handle.create(TargetConfig(8, 4))
    with pytest.raises(TargetDied, match="blocks belong to the engine"):
        target.admit(Request("a", (1, 2)))


@pytest.mark.parametrize("level", LEVELS)
def test_it_is_judged_by_the_parts_that_it_offers(handle: Handle, level: Level) -> None:
    suites = {suite.name: suite for suite in levels.suites(handle, level)}
    assert {name for name, suite in suites.items() if suite.judged} == OFFERED
    reasons = {suites["cache"].why_not(prop) for prop in suites["cache"].properties}
    assert reasons == {handle.profile.unsupported["blocks"]}
    judged = {prop.name for suite in suites.values() for prop in suite.judged}
    known = expected_failures.load("lmcache", "0.5.6", names=property_names())
    assert {each.property for each in known} <= judged
    assert len(judged) > 20


def test_every_property_of_an_offered_part_is_judged_or_says_why_not(handle: Handle) -> None:
    for suite in levels.suites(handle, "core"):
        judged = {prop.name for prop in suite.judged}
        for prop in suite.properties:
            assert (prop.name in judged) != bool(suite.why_not(prop))
