"""transformers' own continuous batching: its cache under the suites, its answers beside ours."""

from __future__ import annotations

import re

import pytest

from kvproof.suites.tests.models.model_kit import open_engine, text, transformers

from kvproof.harness.adapters.transformers import target as adapter  # isort: skip
from kvproof.harness.adapters.transformers import api  # isort: skip
from kvproof.harness.contract.target import Completed, Refused, Request, Scheduled, TargetConfig  # isort: skip
from kvproof.harness.isolation.registry import open_handle  # isort: skip
from kvproof.suites.runner.replay import known_failures

from kvproof.suites.framework.budgets import BUDGETS  # isort: skip
from kvproof.suites.runner.levels import suites  # isort: skip
from kvproof.suites.tests.lab.parity.tiny_models import build  # isort: skip

pytest.importorskip("psutil", reason="transformers sizes its cache with it")
pytestmark = pytest.mark.skipif(
    transformers.__version__ not in api.VERSIONS,
    reason=f"transformers {transformers.__version__} is another release",
)
SPEC = "kvproof.harness.adapters.transformers.target:make_target"
NEW = 10


@pytest.mark.nightly(reason="others of its kind run before each merge")
@pytest.mark.slow(reason="random histories of a cache on torch")
def test_its_cache_holds_under_random_histories():
    with open_handle(SPEC) as handle:
        (suite,) = suites(handle, "core")
        known = known_failures(handle)
        seen = suite.knowing(known).explore(BUDGETS["debug"])
    assert (seen.violation, seen.died) == (None, None)
    assert seen.tolerated.keys() <= {each.name for each in known}
    assert not seen.ended


def open_target(**more):
    return adapter.make_target(TargetConfig(**{"num_blocks": 12, "block_size": 4, **more}))


def test_equal_prompts_of_one_time_are_kept_once():
    target = open_target()
    steps = [target.admit(Request(name, tuple(range(9)))) for name in "ab"]
    assert all(isinstance(step, Scheduled) and step.hit == 0 for step in steps)
    assert not set(steps[0].blocks[0]) & set(steps[1].blocks[0])
    first, second = (target.complete(step.step) for step in steps)
    assert isinstance(first, Completed)
    assert second.blocks[0][:2] == first.blocks[0][:2]
    assert target.inspect().holders[first.blocks[0][0]] == 2


def test_a_prompt_larger_than_the_pool_is_not_refused_before_it_is_stuck():
    """The expected failure: one chunk after the other gets its blocks, until there are none."""
    target = open_target(num_blocks=4)
    step = target.admit(Request("a", tuple(range(40))), 4)
    for _ in range(2):
        target.complete(step.step)
        step = target.extend("a", (), 4)
        assert isinstance(step, Scheduled)
    target.complete(step.step)
    assert isinstance(target.extend("a", (), 4), Refused)


def test_the_installed_release_is_what_the_adapter_expects():
    assert api.differences() == ()


@pytest.fixture
def drifting():
    api.differences.cache_clear()
    yield
    api.differences.cache_clear()


@pytest.mark.usefixtures("drifting")
def test_another_release_is_driven_as_long_as_its_calls_fit(monkeypatch):
    monkeypatch.setattr(api, "version", lambda: "5.24.0")
    assert open_target().inspect().usage.held == 0
    api.differences.cache_clear()
    monkeypatch.setitem(api._SIGNATURES, "Ledger.acquire", "self name")
    with pytest.raises(RuntimeError, match=re.escape("Ledger.acquire(self block_id), expected")):
        open_target()


@pytest.mark.usefixtures("drifting")
@pytest.mark.parametrize(
    ("table", "changed", "said"),
    [
        (
            "_SIGNATURES",
            {"Ledger.acquire": "self name"},
            "Ledger.acquire(self block_id), expected (self name)",
        ),
        ("_SIGNATURES", {"Ledger.gone": "self"}, "Ledger has no attribute gone"),
        ("_ACCEPTED", {"Options": "page_size pages"}, "Options does not accept pages"),
        ("_ATTRIBUTES", {"allocator": "block_tables"}, "allocator has no attribute block_tables"),
    ],
)
def test_what_has_drifted_is_named(monkeypatch, table, changed, said):
    monkeypatch.setattr(api, table, changed)
    (found,) = api.differences()
    assert str(found).endswith(said)


# --- generate_batch ---


def generated(family, prompts):
    """Return what `generate_batch` says about each prompt."""
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    model = build(family)  # its attention is changed for good
    options = ContinuousBatchingConfig(
        page_size=16, num_blocks=64, max_batch_tokens=64, use_cuda_graph=False,
        use_async_batching=False,
    )  # fmt: skip
    wishes = transformers.GenerationConfig(
        max_new_tokens=NEW, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    said = model.generate_batch(
        [list(prompt) for prompt in prompts], generation_config=wishes,
        continuous_batching_config=options, progress_bar=False, warmup=False,
    )  # fmt: skip
    return [said[name] for name in sorted(said, key=lambda name: int(name.rpartition("_")[2]))]


PROMPTS = tuple((*text(64, seed=1), *text(count, seed=count)) for count in (37, 9, 70))


@pytest.mark.filterwarnings("ignore")  # transformers warns of what this test is about
@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe", "gemma3"])
def test_it_answers_as_the_reference_does(family):
    engine, _ = open_engine(family, mode="batched")
    ours = engine.generate(PROMPTS, max_new_tokens=NEW)
    theirs = generated(family, PROMPTS)
    assert [each.error for each in theirs] == [None] * len(PROMPTS)
    assert [tuple(each.generated_tokens) for each in theirs] == ours


@pytest.mark.filterwarnings("ignore")  # as above
@pytest.mark.parametrize("family", ["qwen3_next", "llama4"])
def test_recurrent_and_chunked_layers_are_refused(family):
    with pytest.raises(ValueError, match="Invalid layer type"):
        generated(family, PROMPTS)


@pytest.mark.filterwarnings("ignore")  # as above
def test_latent_layers_are_an_error_of_each_request_and_no_answer():
    said = generated("deepseek_v3", PROMPTS)
    assert all(each.error for each in said)
    assert not any(each.generated_tokens for each in said)
