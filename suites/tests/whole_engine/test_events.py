"""Events of an engine as a router reads them: counted in their order, and led back to prompts."""

from __future__ import annotations

import pytest

from kvproof.harness.contract.whole_engine import EngineRequest, GroupKind
from kvproof.harness.model.records import CacheEvent, Namespace
from kvproof.harness.whole_engine.device_requests import DeviceRequest
from kvproof.harness.whole_engine.findings import Findings
from kvproof.harness.whole_engine.published_prefixes import PREFIXES, Group, PublishedPrefixes
from kvproof.harness.whole_engine.replayed_index import REPLAY, ReplayedIndex
from kvproof.harness.whole_engine.requests import chain_of

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
