"""The runner's memory, groups and protocol; what its answers are worth is for test_parity."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvproof.suites.tests.models.model_kit import (
    BLOCK,
    CHUNK,
    open_engine,
    serve,
    shared,
    text,
    torch,
)

from kvproof.reference.core.cache_config import CacheConfig, ConfigError  # isort: skip
from kvproof.reference.engine.engine import Engine  # isort: skip
from kvproof.reference.engine.engine_config import EngineConfig  # isort: skip
from kvproof.reference.core.attention_groups import GroupConfig  # isort: skip
from kvproof.reference.model_runner.memory import PagedMemory  # isort: skip
from kvproof.reference.model_runner.oracle import truth  # isort: skip
from kvproof.reference.model_runner.page_map import layer_groups, page_map  # isort: skip
from kvproof.reference.model_runner.runner import HuggingFaceModel, cache_config  # isort: skip
from kvproof.reference.model.symbolic_memory import WrongAddress  # isort: skip
from kvproof.reference.model.interface import Work  # isort: skip

EVERY_KIND = ("qwen3", "gemma4", "llama4", "deepseek_v32", "qwen3_next", "mamba2", "falcon_h1")
"""Full, window with unequal heads, chunk, latent with indexer, recurrent beside and alone, both."""


# --- groups ---


@pytest.mark.parametrize(
    ("family", "kinds"),
    [
        ("qwen3", ["full"]),
        ("gemma4", ["window", "full"]),
        ("llama4", ["chunk", "full"]),
        ("deepseek_v32", ["full"]),
        ("qwen3_next", ["full", "state"]),
        ("mamba2", ["state"]),
        ("falcon_h1", ["full", "state"]),
        ("nemotron_h", ["full", "state"]),
    ],
)
def test_groups_are_found_by_running_the_model(family, kinds):
    assert [group.kind for group in layer_groups(shared(family).probe.layers)] == kinds


def test_a_latent_layer_has_keys_and_values_of_unequal_width():
    layer = shared("deepseek_v32").probe.layers[0]
    assert {part.name: part.shape for part in layer.tokens} == {
        "keys": (1, 24),
        "values": (1, 8),
        "indexer": (16,),
    }


def test_experts_are_counted():
    assert shared("qwen3_moe").probe.experts == (8, 4, 2)
    assert shared("deepseek_v3").probe.experts == (8, 3, 2)
    assert shared("qwen3").probe.experts == (0, 0, 0)


def test_groups_of_another_model_are_refused():
    config = cache_config(shared("gemma4").model, num_blocks=20)
    with pytest.raises(ConfigError, match=r"must be those of the model: \[\('full', 0\)\]"):
        HuggingFaceModel(shared("qwen3").model, config)


def test_a_state_that_does_not_fit_its_blocks_is_refused_with_the_number():
    model = shared("qwen3_next").model
    config = cache_config(model, num_blocks=100, block_size=16)
    groups = (config.groups[0], GroupConfig("state", 16, state_blocks=2))
    with pytest.raises(ConfigError, match=r"state_blocks 2 hold \d+ bytes.*: at least 5"):
        HuggingFaceModel(model, replace(config, groups=groups))


def test_an_unknown_mode_is_refused_with_the_legal_ones():
    model = shared("qwen3").model
    with pytest.raises(ConfigError, match="mode 'fast' must be one of exact, batched"):
        HuggingFaceModel(model, cache_config(model, num_blocks=20), mode="fast")


# --- memory ---


def open_memory(family, **options):
    model = shared(family)
    settings = {"num_blocks": 12, "block_size": 16, "kernel_block_size": 4, **options}
    config = cache_config(model.model, **settings)
    return PagedMemory(page_map(model.probe.layers, config), config, torch.device("cpu"))


@pytest.mark.parametrize("family", EVERY_KIND)
def test_tensors_of_a_block_never_overlap_and_stay_inside(family):
    memory = open_memory(family, local_block_size=8)
    pages = memory.map
    for group, fields in enumerate(pages.fields):
        config = pages.configs[group]
        last = len(memory.blocks) * config.kernel_ratio - 1
        memory.blocks.zero_()
        for number, field in enumerate(fields):
            view = memory.view(group, field.layer, field.part.name)
            assert view.shape[:2] == (last + 1, config.kernel_size)
            assert not view[last].any(), "a tensor written before reaches into this one"
            view[last] = number + 1
        size = sum(field.part.nbytes for field in fields) * config.kernel_size
        assert size <= pages.page_bytes(group)
        assert not memory.blocks[:-1].any(), "a tensor reaches into another block"


def test_a_block_is_its_kernel_blocks_one_after_the_other():
    memory = open_memory("qwen3")
    view = memory.view(0, 0, "keys")
    view[5 * 4 : 6 * 4] = 7.0
    changed = (memory.blocks != 0xFF).any(dim=1) & (memory.blocks != 0).any(dim=1)
    assert changed.nonzero().flatten().tolist() == [5]


def test_fresh_and_freed_blocks_are_no_numbers_and_the_null_block_is_zero():
    memory = open_memory("qwen3")
    view = memory.view(0, 2, "values")
    assert view[4:].isnan().all()
    assert not view[:4].any()
    view[:] = 1.0
    memory.poison([3])
    assert view[12:16].isnan().all()
    assert not view[16:].isnan().any()


def test_the_null_block_is_never_written():
    memory = open_memory("qwen3_next")
    places = np.arange(8, dtype=np.int64)[None]
    table = np.array([8, 0], np.int32)
    with pytest.raises(WrongAddress, match="writes to the null block"):
        memory.slots(0, [table], places, writes=1)
    memory.slots(0, [table], places, writes=0)
    with pytest.raises(WrongAddress, match="copies into the null block"):
        memory.copy([(3, 0)])
    with pytest.raises(WrongAddress, match="0 is never used"):
        memory.write_state([4, 0], memory.state([4, 5, 6, 7, 8]))


def test_a_table_too_short_is_no_read_of_another_request():
    memory = open_memory("qwen3")
    with pytest.raises(WrongAddress, match="tables of 8 tokens cannot hold position 8"):
        memory.slots(0, [np.array([4, 5], np.int32)], np.array([[7, 8]]), writes=1)


@pytest.mark.parametrize("pool", ["shared", "separate"])
def test_a_state_is_read_as_it_was_written(pool):
    memory = open_memory("qwen3_next", state_pool=pool)
    ids = [7, 2, 9, 1, 4] if pool == "shared" else [3]
    state = torch.arange(memory.map.state_bytes).to(torch.uint8)
    memory.write_state(ids, state)
    assert torch.equal(memory.state(ids), state)
    kept = memory.state(ids)
    memory.write_state(ids, state + 1)
    assert torch.equal(kept, state), "what was read is a view"


# --- the protocol ---


def test_a_hit_computes_only_what_is_missing():
    engine, _ = open_engine("qwen3")
    prompt = text(100)
    first = serve(engine, "a", prompt)
    before = engine.model.computed
    assert serve(engine, "b", (*prompt, *first, 9), new=1)
    assert engine.model.computed - before == 105 - 96


def test_without_hits_nothing_is_shared():
    engine, logits = open_engine("qwen3", enable_prefix_caching=False)
    for name in "ab":
        serve(engine, name, text(70))
    assert [start for start, _ in logits["b"][:3]] == [0, 32, 64]


def test_partial_blocks_are_copied_before_they_are_written():
    """T6: the tail of one request begins another, and both go on with their own content."""
    engine, logits = open_engine("qwen3", cache_partial_blocks=True)
    prompt = text(40)
    first = serve(engine, "a", prompt, new=2)
    copied = []
    launch = engine.model.launch

    def watched(step, works):
        copied.extend(pair for work in works for pair in work.copies)
        launch(step, works)

    engine.model.launch = watched
    second = (*prompt[:38], 11, 12, 13)
    serve(engine, "b", second)
    assert logits["b"][0][0] == 38
    assert copied
    right = truth(shared("qwen3").model, second).logits[38:]
    assert (torch.cat([values for _, values in logits["b"]])[:3] - right).abs().max() < 1e-2
    again = serve(engine, "c", (*prompt, *first, 5), new=2)
    alone, _ = open_engine("qwen3", enable_prefix_caching=False)
    assert again == serve(alone, "c", (*prompt, *first, 5), new=2)


@pytest.mark.parametrize("family", EVERY_KIND)
def test_a_request_moves_to_another_engine(family):
    """C5: entries and state go along; the answer is that of a request that stayed."""
    home, _ = open_engine(family)
    away, _ = open_engine(family, num_blocks=150)
    prompt = text(75, seed=3)
    stayed = serve(open_engine(family)[0], "a", prompt, new=12)
    serve(away, "other", text(50, seed=4))
    home.add_request("a", prompt, max_new_tokens=12)
    for _ in range(6):
        home.step()
    moved = home.take_out("a")
    assert away.bring_in(moved) is None
    answer = ()
    while away.busy:
        for output in away.step():
            answer = output.tokens
    assert answer == stayed


@pytest.mark.parametrize(
    ("family", "pool"),
    [(family, "shared") for family in EVERY_KIND]
    + [("qwen3_next", "separate"), ("falcon_h1", "separate")],
)
def test_what_was_evicted_comes_back_from_the_host(family, pool):
    """Entries and states go through host memory, and every logit after the hit keeps its bits."""
    model = shared(family).model
    config = cache_config(
        model, num_blocks=400, block_size=BLOCK, kernel_block_size=4, local_block_size=8,
        state_pool=pool, prefix_cache_state_budget=8 if pool == "separate" else 0,
    )  # fmt: skip
    logits = {}

    def keep(name, start, values):
        logits.setdefault(name, []).append((start, values))

    runner = HuggingFaceModel(model, config, on_logits=keep)
    engine = Engine(EngineConfig(config, CHUNK, poison_freed=True, host_tier="64MiB"), runner)
    prompt = text(100, seed=6)
    first = serve(engine, "a", prompt)
    evicted = engine.cache.evict(400)
    runner.memory.blocks[1:] = 0xFF
    runner.memory.rows[1:] = 0xFF
    assert evicted
    assert serve(engine, "b", prompt) == first
    assert logits["b"][0][0] == 96
    ends = [torch.cat([values for start, values in logits[name] if start >= 96]) for name in "ab"]
    assert torch.equal(*ends)


def test_sampling_is_the_callers():
    seen = []

    def choose(work, logits):
        seen.append((work.request_id, len(work.tokens), logits.shape))
        return int(logits.argsort()[-2])

    engine, logits = open_engine("qwen3", choose=choose)
    answer = serve(engine, "a", text(20), new=3)
    assert seen == [("a", position, (384,)) for position in (20, 21, 22)]
    assert answer[0] == int(logits["a"][0][1][-1].argsort()[-2])


def test_logits_of_the_last_token_alone_choose_the_same():
    model = shared("qwen3").model
    config = cache_config(model, num_blocks=100, block_size=16)
    quiet = Engine(EngineConfig(config, 32), HuggingFaceModel(model, config))
    engine, _ = open_engine("qwen3")
    prompts = [text(70), text(9, seed=1)]
    assert quiet.generate(prompts, max_new_tokens=6) == engine.generate(prompts, max_new_tokens=6)


def test_a_reset_forgets_what_was_computed():
    engine, logits = open_engine("qwen3_next")
    serve(engine, "a", text(70))
    engine.reset()
    serve(engine, "b", text(70))
    assert logits["b"][0][0] == 0


def test_rows_of_one_length_run_together():
    engine, _ = open_engine("qwen3", mode="batched", chunk=64)
    engine.generate([text(20, seed=n) for n in range(3)], max_new_tokens=5)
    assert engine.model.forwards == 1 + 4
    assert engine.model.computed == 3 * 24


def test_fresh_rows_of_recurrent_models_run_apart():
    """A layer has one flag for all its rows: whether there is a state."""
    engine, _ = open_engine("mamba2", mode="batched", chunk=64)
    serve(engine, "a", text(32))
    before = engine.model.forwards
    engine.add_request("b", (*text(32), *text(8, seed=2)), max_new_tokens=1)
    engine.add_request("c", text(8, seed=3), max_new_tokens=1)
    while engine.busy:
        engine.step()
    assert engine.model.forwards - before == 2


def test_a_work_without_room_is_refused_before_it_writes():
    engine, _ = open_engine("qwen3")
    model = engine.model
    work = Work(
        "a", text(20), 20, None, (), 0, 0, 20, (np.array([4, 5, 6, 7], np.int32),), None, (), 0, 0
    )
    with pytest.raises(WrongAddress):
        model.launch(1, [work])


def test_the_default_configuration_has_one_block_size():
    config = cache_config(shared("gemma4").model, num_blocks=20)
    assert isinstance(config, CacheConfig)
    assert {group.block_size for group in config.groups} == {64}
