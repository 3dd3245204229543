"""Simulated power: the verdicts find what they should, and correct engines seldom fail."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from kvproof.suites.tests.lab.eval_power import alarms
from kvproof.suites.tests.lab.eval_power.__main__ import (
    NOISES,
    Noise,
    by_divergence,
    hits,
    verdicts,
)
from kvproof.suites.tests.lab.eval_power.faults import FAULTS, LEVELS, Fault
from kvproof.suites.tests.lab.eval_power.noises import GROUPS, MODELS, broken, verdict

RUNS = 4


@pytest.mark.parametrize("model", MODELS)
def test_no_model_of_noise_fails(model: str) -> None:
    """Each fails in 1 run of 1,000 at most; the command with --noise runs more."""
    assert len(MODELS) >= 10
    found = [verdict(MODELS[model], np.random.default_rng([1, seed])) for seed in range(RUNS)]
    assert "fail" not in found


def test_runs_of_noise_go_on_where_they_ended() -> None:
    case, kept = alarms.Case("exact", MODELS["exact"], 3), {"exact": Counter({"pass": 2})}
    alarms.judged([case], kept, until=-math.inf)
    assert kept["exact"].total() == 2
    alarms.judged([case], kept, until=math.inf)
    assert list(alarms.rows([case], kept))[2:] == ["| exact | 3 | 0 | 0 | 3 |"]


@pytest.mark.parametrize("struck", ["", *(group.situations[-1] for group in GROUPS[1:])])
@pytest.mark.parametrize("model", ["exact", "float32", "16 bits"])
def test_a_wrong_block_in_every_hit_of_a_situation_fails(model: str, struck: str) -> None:
    engine = broken(MODELS[model], struck)
    found = [verdict(engine, np.random.default_rng([1, seed])) for seed in range(RUNS)]
    assert found == ["fail"] * RUNS


def test_there_are_many_faults_with_whole_effects() -> None:
    assert len({each.name for each in FAULTS}) == len(FAULTS) >= 20
    for each in FAULTS:
        assert len(each.effect.quantiles) == len(LEVELS)
        assert tuple(sorted(each.effect.quantiles)) == each.effect.quantiles
        assert 0 <= each.effect.letter <= each.effect.text <= 1


@pytest.mark.parametrize("noise", NOISES, ids=lambda noise: noise.name)
def test_a_correct_engine_does_not_fail(noise: Noise) -> None:
    found = verdicts(None, noise, 48, RUNS)
    most = 1 if noise.far else 0  # letters fail 1 of 20 tables at most (alpha), here 1 of 162
    assert all(each["fail"] <= most for each in found.values())


@pytest.mark.parametrize("fault", FAULTS[:6], ids=lambda fault: fault.name)
def test_divergence_finds_what_strikes_often(fault: Fault) -> None:
    found = verdicts(fault, NOISES[1], 48, RUNS)
    assert found["divergence"]["fail"] == RUNS


@pytest.mark.parametrize(
    "fault", [each for each in FAULTS if each.every == 30], ids=lambda e: e.name
)
def test_one_wrong_hit_in_30_fails_with_60_samples_in_float32(fault: Fault) -> None:
    """Also where it is off by less than a nat, which is much over such a floor."""
    found = [
        by_divergence(hits(fault, NOISES[1], 60, rng), NOISES[1], rng)
        for rng in map(np.random.default_rng, range(RUNS))
    ]
    assert found == ["fail"] * RUNS


@pytest.mark.parametrize("name", ["16 bits, dense", "16 bits, with experts"])
def test_a_wrong_block_in_every_hit_fails_in_16_bits(name: str) -> None:
    noise = next(each for each in NOISES if each.name == name)
    found = verdicts(FAULTS[0], noise, 48, RUNS)
    assert {method: each["fail"] for method, each in found.items()} == dict.fromkeys(found, RUNS)
