"""Configurations that the suite draws for a card: each is one that its worker takes."""

from __future__ import annotations

import pytest

from kvproof.harness.adapters.vllm_live.models import BLOCK, check, kind_of, model_of
from kvproof.harness.adapters.vllm_live.traits import EAGER, TIERS, USUAL, declared
from kvproof.harness.contract.whole_engine import EngineConfig, GroupKind, Refused, config_of
from kvproof.harness.contract.whole_engine_traits import connectors
from kvproof.suites.whole_engine.strategies import LoopHistories

WINDOW = GroupKind("window", 48)


def test_every_drawn_configuration_is_taken() -> None:
    drawn = LoopHistories(declared())
    kinds, tiers = set(), set()
    for seed in range(300):
        config = config_of(drawn.config(drawn.choices(seed), seed).config["engine"])
        check(config)
        groups, mode = kind_of(config)
        assert model_of(groups)["num_hidden_layers"] == 2 * len(groups)
        kinds.add((len(groups), mode))
        tiers.add(config.connector)
    assert kinds == {(1, USUAL), (1, EAGER), (2, USUAL), (2, EAGER)}
    assert tiers == {"", *TIERS}


@pytest.mark.parametrize(
    "other",
    [
        {"block_size": 4},
        {"runner": "v1"},
        {"connector": "example"},
        {"blocks": 201},
        {"kernel_block_size": 8},
        {"heads": 2},
    ],
)
def test_what_no_worker_has_is_refused(other: dict[str, object]) -> None:
    right: dict[str, object] = {"block_size": BLOCK, "runner": "v2"}
    check(EngineConfig(**right))  # type: ignore[arg-type] # values of unlike fields
    with pytest.raises(Refused):
        check(EngineConfig(**{**right, **other}))  # type: ignore[arg-type] # as above


def test_two_windows_have_no_model() -> None:
    with pytest.raises(Refused):
        model_of((GroupKind(), WINDOW, GroupKind("window", 64)))
    assert model_of((GroupKind(), WINDOW))["sliding_window"] == WINDOW.size


def test_names_of_other_connectors_are_known_and_refused() -> None:
    assert "nixl_pull_consumer_fail" in connectors(declared())  # an op log may name it
    assert declared().lacks("two engines") == "it is not driven on a card"
