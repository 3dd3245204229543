"""Planted cache bugs are seen; `make parity` does this on the whole zoo."""

from __future__ import annotations

import pytest

from kvproof.suites.tests.models.model_kit import shared

from kvproof.reference.model_runner.object_transfer import ObjectTransfer  # isort: skip
from kvproof.suites.tests.fast_share import one_in  # isort: skip
from kvproof.suites.tests.lab.parity.tier_roundtrip import tiers  # isort: skip
from kvproof.suites.tests.lab.parity.compare import TOLERANCE  # isort: skip
from kvproof.suites.tests.lab.parity.planted_bugs import BUGS, seen  # isort: skip

pytestmark = pytest.mark.slow(reason="computes with torch models")

SUBJECTS = ("gemma3", "deepseek_v32", "falcon_h1")
"""Windows; latent with indexer; states beside attention: every bug is visible on one of them."""


@pytest.mark.parametrize("family", SUBJECTS)
def test_without_a_bug_nothing_is_seen(family):
    assert seen(shared(family), None).passed


@pytest.mark.parametrize(
    "bug", one_in(0, BUGS, reason="computes with torch models"), ids=lambda bug: bug.name
)
def test_a_bug_is_seen_wherever_it_is_visible(bug):
    visible = [family for family in SUBJECTS if bug.visible(shared(family))]
    assert visible, "no family shows it"
    for family in visible:
        outcome = seen(shared(family), bug)
        assert not outcome.passed, f"{family}: {outcome}"
        assert outcome.difference > TOLERANCE, f"{family}: hardly seen, {outcome}"


@pytest.mark.parametrize("family", ["gemma3", "falcon_h1"])
def test_a_byte_that_a_tier_loses_is_seen(family, monkeypatch):
    load = ObjectTransfer.load

    def damaged(self, places, contents):
        changed = [bytearray(content) for content in contents]
        for data in changed:
            data[len(data) // 3] ^= 0x40
        load(self, places, changed)

    monkeypatch.setattr(ObjectTransfer, "load", damaged)
    outcome = tiers(shared(family))
    assert not outcome.passed
    assert outcome.difference > 0


def test_there_are_thirteen():
    assert len({bug.name for bug in BUGS}) == 13
