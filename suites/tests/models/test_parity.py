"""A minute of the parity suite: every family by its strictest levels, a few families by all."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from kvproof.suites.tests.models.model_kit import shared, torch

from kvproof.harness.errors import UsageError  # isort: skip
from kvproof.suites.tests.fast_share import one_in  # isort: skip
from kvproof.suites.tests.lab.parity import table  # isort: skip
from kvproof.suites.tests.lab.parity.__main__ import main  # isort: skip
from kvproof.suites.tests.lab.parity.cells import Cell, Report, Versions, versions  # isort: skip
from kvproof.suites.tests.lab.parity.job import SELF_CHECK, Job, run  # isort: skip
from kvproof.suites.tests.lab.parity.compare import Outcome  # isort: skip
from kvproof.suites.tests.lab.parity.levels import LEVELS, hits  # isort: skip
from kvproof.suites.reference.parity.tiny_models import Writer  # isort: skip
from kvproof.suites.reference.parity.tiny_models import TEXT  # isort: skip
from kvproof.suites.tests.lab.parity.tiny_models import FAMILIES, build  # isort: skip

THOROUGH = ("gemma4_moe", "deepseek_v32", "falcon_h1", "qwen3_5_moe_vl")
"""Windows and experts; latent with indexer; states beside attention; images, states, experts."""
BY_NAME = {level.name: level for level in LEVELS}


def check(level, family):
    outcome = BY_NAME[level].check(shared(family))
    assert outcome.passed, outcome


_RARE = ("axk2", "gemma4_shared", "hy_v3")
"""Their kinds of cache are those of other families."""


@pytest.mark.slow(reason="computes with torch models")
@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in _RARE])
def test_a_hit_changes_no_bit(family):
    check("hits", family)


@pytest.mark.nightly(reason="kinds of cache that other families have, too")
@pytest.mark.slow(reason="computes with torch models")
@pytest.mark.parametrize("level", ["exact", "hits", "bytes", "tiers"])
@pytest.mark.parametrize("family", _RARE)
def test_families_with_the_caches_of_others_are_exact(family, level):
    check(level, family)


def test_layers_that_read_the_cache_of_others_keep_none():
    """Nothing of theirs is stored, moved or counted (Q3)."""
    found = shared("gemma3n").probe.layers
    assert [bool(layer.tokens) for layer in found] == [True] * 4 + [False] * 2
    indexed = [any(part.name == "indexer" for part in each.tokens) for each in _layers("hy_v4")]
    assert indexed == [True, False] * 2


def _layers(family):
    return shared(family).probe.layers


@pytest.mark.parametrize("family", THOROUGH)
@pytest.mark.parametrize(
    "level",
    one_in(0, [each.name for each in LEVELS if each.name != "hits"], reason="computes with models"),
)
def test_every_level_holds(family, level):
    if not BY_NAME[level].applies(shared(family)):
        pytest.skip(f"{family} has nothing that {level} compares")
    check(level, family)


def test_every_level_is_run_on_some_family():
    for level in LEVELS:
        assert any(level.applies(shared(family)) for family in THOROUGH), level.name


def test_the_zoo_has_every_kind_of_cache():
    kinds, parts = set(), set()
    for family in FAMILIES:
        for layer in shared(family).probe.layers:
            kinds |= {layer.kind} if layer.tokens else set()
            parts |= {part.name for part in (*layer.tokens, *layer.states)}
    assert kinds == {"full", "window", "chunk"}
    assert parts == {"keys", "values", "indexer", "conv_states", "recurrent_states"}
    assert sum(family.image for family in FAMILIES.values()) == 4


def test_a_model_is_the_same_for_the_same_seed_and_leaves_the_generator_alone():
    before = torch.random.get_rng_state()
    one, two, other = build("lfm2"), build("lfm2"), build("lfm2", seed=1)
    assert torch.equal(torch.random.get_rng_state(), before)
    name = "model.layers.1.self_attn.k_proj.weight"
    assert torch.equal(one.state_dict()[name], two.state_dict()[name])
    assert not torch.equal(one.state_dict()[name], other.state_dict()[name])


def test_answers_depend_on_what_lies_far_back():
    """Else parity would be blind: another first token has to change the last logits."""
    model = shared("qwen3_next").model
    tokens = torch.tensor([Writer(1).text(120)])
    other = tokens.clone()
    other[0, 0] = TEXT.start if tokens[0, 0] != TEXT.start else TEXT.start + 1
    with torch.no_grad():
        ends = [model(input_ids=each).logits[0, -1] for each in (tokens, other)]
    assert (ends[0] - ends[1]).abs().max() > 1


# --- what is reported ---


def cells():
    return [
        Cell(family="a", dtype="float32", level="exact", passed=True, difference=0.0),
        Cell(
            family="a", dtype="float32", level="hits", passed=False, difference=2.5, wrong="token 3"
        ),
        Cell(family="b", dtype="float32", level="exact", passed=False, difference=None),
        Cell(family="a", dtype="float32", level="zero", passed=True, difference=30.0, bug=True),
        Cell(family="b", dtype="float32", level="zero", passed=False, difference=0.0, bug=True),
    ]


def test_a_document_has_both_tables_and_every_failure():
    report = Report(Versions("2.13", "5.23", "cpu", ()), cells(), 61.2)
    assert (
        table.markdown(report)
        == """\
transformers 5.23, torch 2.13, cpu; optional kernels: none; 61 s

**Largest difference per level (0: equal bit by bit)**

| family | type | exact | hits |
| --- | --- | --: | --: |
| a | float32 | 0 | FAILS 2e+00 |
| b | float32 | FAILS inf | - |

**Planted bugs: largest difference that each makes**

| family | type | zero |
| --- | --- | --: |
| a | float32 | 3e+01 |
| b | float32 | NOT SEEN 0 |

- a float32, hits: token 3 (FAILS 2e+00, limit 0e+00)
- b float32, exact: no other finding (FAILS inf, limit 0e+00)
- b float32, zero: no other finding (NOT SEEN 0, limit 0e+00)
"""
    )


def test_a_report_is_written_and_read_again():
    report = Report(versions("cpu"), cells(), 1.0)
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report


@pytest.mark.parametrize(
    ("families", "options", "message"),
    [
        (["lama"], {}, "family 'lama' is unknown"),
        (["llama"], {"level": ("fast",)}, "level 'fast' is unknown"),
        (["llama"], {"dtype": ("int8",)}, "dtype 'int8' is unknown"),
        (["llama"], {"output": (Path("table.csv"),)}, "output '.csv' is unknown"),
    ],
)
def test_an_unknown_name_is_refused_before_anything_runs(families, options, message):
    with pytest.raises(UsageError, match=message) as raised:
        main(*families, **options)
    assert raised.value.hint.startswith("one of ")


def test_a_difference_that_is_no_number_passes_nothing():
    assert not Outcome(float("nan"), 1.0).passed
    assert not Outcome(float("inf"), 1.0).passed
    assert Outcome(0.5, 1.0).passed


def test_a_job_begins_with_the_self_check():
    found = run(Job("lfm2", "float64", "cpu", ("exact",), bugs=False))
    assert [(cell.level, cell.passed) for cell in found] == [(SELF_CHECK, True), ("exact", True)]


def test_16_bits_are_compared_bit_by_bit_only():
    names = [level.name for level in LEVELS if level.fits("bfloat16")]
    assert names == ["exact", "hits", "bytes", "tiers", "replay", "images"]
    assert hits(shared("qwen3")).limit == 0
