"""Events of an engine as a router reads them: counted in their order, and led back to prompts."""

from __future__ import annotations

import pytest

from kvproof.harness.contract.whole_engine import EngineRequest, GroupKind
from kvproof.harness.model.records import CacheEvent, Namespace
from kvproof.harness.oracle.violation import Violation
from kvproof.harness.whole_engine.device_requests import DeviceRequest
from kvproof.harness.whole_engine.findings import Findings
from kvproof.harness.whole_engine.published_prefixes import PREFIXES, Group, PublishedPrefixes
from kvproof.harness.whole_engine.replayed_index import REPLAY, ReplayedIndex
from kvproof.harness.whole_engine.requests import chain_of
from kvproof.suites.engines.vllm.mechanisms import loop as known
from kvproof.suites.framework.failed import Failed

REQUEST = EngineRequest("r0", (5, 6, 7, 8, 9, 10), adapter="a")
FIRST = CacheEvent("stored", "one", "", tokens=(5, 6), namespace=Namespace("a"))
SECOND = CacheEvent("stored", "two", "one", tokens=(7, 8), namespace=Namespace("a"))


def prefixes(*batches: list[CacheEvent]) -> Findings:
    findings = Findings()
    chain = chain_of(REQUEST, [GroupKind()])
    requests = {"r0": DeviceRequest(REQUEST, chain)}
    read = PublishedPrefixes(findings, requests, [Group("full", 2)])
    for events in batches:
        read.apply(events)
    return findings


@pytest.mark.parametrize(
    "batches", [([FIRST, SECOND],), ([SECOND, FIRST],), ([FIRST], [SECOND]), ([FIRST, FIRST],)]
)
def test_blocks_behind_each_other_lead_back_to_a_request(batches):
    findings = prefixes(*batches)
    assert findings.wrong is None
    assert findings.checks[PREFIXES] == sum(map(len, batches))


@pytest.mark.parametrize(
    "wrong",
    [
        CacheEvent("stored", "two", "", tokens=(7, 8), namespace=Namespace("a")),
        CacheEvent("stored", "two", "gone", tokens=(7, 8), namespace=Namespace("a")),
        CacheEvent("stored", "two", "one", tokens=(8, 9), namespace=Namespace("a")),
        CacheEvent("stored", "two", "one", tokens=(7, 8)),
        CacheEvent("stored", "two", "one", tokens=(7, 8), namespace=Namespace("a"), beyond=2),
        CacheEvent("stored", "two", "one", tokens=(7, 8, 9, 10, 11), namespace=Namespace("a")),
    ],
    ids=["root", "orphan", "tokens", "adapter", "more tokens", "longer than the request"],
)
def test_a_block_that_leads_elsewhere_is_wrong(wrong):
    findings = prefixes([FIRST, wrong])
    assert findings.wrong is not None
    assert findings.wrong.property == PREFIXES


@pytest.mark.parametrize(
    ("kinds", "right"), [(("stored", "removed"), True), (("removed", "stored"), False)]
)
def test_a_removal_comes_behind_its_store(kinds, right):
    findings = Findings()
    index = ReplayedIndex(findings)
    index.apply(CacheEvent(kind, "one") for kind in kinds)
    index.compare((), unpublished=())
    assert (findings.wrong is None) == right
    assert findings.checks[REPLAY] == 1


def failed(unit: int = 0, **facts: object) -> Failed:
    settings = {"prefix_match_unit": unit} if unit else {}
    config = {"engine": {"block_size": 8, "settings": settings}}
    return Failed(Violation(PREFIXES, "o", "", facts=facts), config, [("step", {})])


@pytest.mark.parametrize(
    ("kind", "beyond", "expected"),
    [("window", 4, True), ("state", 4, True), ("window", 0, False), ("full", 4, False)],
)
def test_tokens_of_blocks_left_out_are_excused_and_nothing_else(kind, beyond, expected):
    assert known.event_has_tokens_of_other_blocks(failed(kind=kind, beyond=beyond)) == expected


@pytest.mark.parametrize(
    ("tokens", "parts", "orphan", "expected"),
    [(4, 2, True, True), (4, 2, False, False), (4, 1, True, False), (8, 2, True, False)],
)
def test_a_part_as_long_as_a_windows_smaller_block_is_excused(tokens, parts, orphan, expected):
    found = failed(tokens=tokens, orphan=orphan)
    found.config["engine"]["groups"] = [{"layers": 1}, {"kind": "window", "parts": parts}]
    assert known.part_is_published_behind_no_key(found) == expected


@pytest.mark.parametrize(
    ("unit", "tokens", "orphan", "expected"),
    [
        (2, 2, True, True),
        (2, 2, False, False),
        (2, 8, True, False),
        (0, 2, True, False),
        (8, 8, True, False),
    ],
)
def test_a_part_of_a_block_is_excused_and_nothing_else(unit, tokens, orphan, expected):
    found = failed(unit, tokens=tokens, orphan=orphan)
    assert known.part_is_published_behind_no_key(found) == expected
