"""Every configuration of a swarm is legal, and every value that the traits offer is drawn."""

from __future__ import annotations

from functools import cache
from itertools import islice
from typing import Any

import pytest

from kvproof.harness.adapters.vllm_engine.traits import traits
from kvproof.harness.contract.whole_engine import config_of
from kvproof.harness.contract.whole_engine_traits import check_names
from kvproof.suites.framework.component_suite import DealtConfig
from kvproof.suites.framework.seeds import seed_of
from kvproof.suites.tests.whole_engine.toy_engine import TRAITS
from kvproof.suites.whole_engine.strategies import LoopHistories

VLLM = traits({})
ENGINES = {"toy": TRAITS, "vllm": VLLM}


@cache
def dealt(name: str) -> list[DealtConfig]:
    every = LoopHistories(ENGINES[name])
    return [every.config(every.choices(seed_of(1, at)), at) for at in range(800)]


def drawn(name: str) -> list[dict[str, Any]]:
    return [each.config for each in dealt(name)]


@pytest.mark.parametrize("name", ENGINES)
def test_every_configuration_is_legal_and_in_the_table(name: str) -> None:
    table = LoopHistories(ENGINES[name]).factors
    for config, row in dealt(name):
        check_names(ENGINES[name], config_of(config["engine"]))
        assert table.why_not(row) == ""


def test_equal_seeds_draw_equal_configurations() -> None:
    every = LoopHistories(VLLM)
    again = [every.config(every.choices(seed_of(1, at)), at) for at in range(40, 80)]
    assert again == dealt("vllm")[40:80]


def test_a_pool_holds_the_longest_request_of_all_groups() -> None:
    for config in (each["engine"] for each in drawn("vllm")):
        blocks = -(-config["max_length"] // config["block_size"])
        assert config["blocks"] > blocks * len(config["groups"])


def test_connectors_run_beside_runner_v2_windows_and_chunks_of_several_blocks() -> None:
    """What no profile of 0.14 drew."""
    found = set()
    for config in islice(drawn("vllm"), 200):
        engine = config["engine"]
        if engine.get("connector") in ("offload", "simple", "multi"):
            windows = [each for each in engine["groups"] if each.get("kind") == "window"]
            found |= {f"windows {len(windows)}", engine["runner"], f"size {engine['block_size']}"}
            found |= {"chunk" for each in engine["tier"] if each == "blocks_per_chunk"}
    assert found >= {"windows 2", "v2", "size 7", "size 4", "chunk"}


def test_every_value_that_the_traits_offer_is_drawn() -> None:
    configs = [each["engine"] for each in drawn("vllm")]
    for name, values in VLLM.settings.items():
        found = {each["settings"].get(name) for each in configs}
        assert found >= {None, *values}, name
        assert name in VLLM.settings_in_blocks or found == {None, *values}, name
    for name, multiples in VLLM.settings_in_blocks.items():
        for block in VLLM.block_sizes:
            found = {x["settings"].get(name) for x in configs if x["block_size"] == block}
            assert found - {None} == {each * block for each in multiples if not each * block % 1}
    for tier in VLLM.tiers:
        own = [each.get("tier", {}) for each in configs if each.get("connector") == tier.name]
        for name, values in tier.settings.items():
            assert {each.get(name) for each in own} == {None, *values}, name
    counts = {
        (each["drafts"]["method"], each["drafts"]["count"]) for each in configs if "drafts" in each
    }
    assert counts == {(each.name, n) for each in VLLM.drafts for n in range(1, each.most + 1)}
    assert {each["block_size"] for each in configs} == {*VLLM.block_sizes}
