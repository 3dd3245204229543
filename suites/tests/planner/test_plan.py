"""Plans against the rule of engines, hand calculation, and the cache manager itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from kvproof.reference.cache.cache_manager import CacheManager
from kvproof.reference.cache.request_state import Refusal
from kvproof.reference.planner.capacity import capacity, longest_length, need
from kvproof.reference.planner.layer_spec import LayerSpec, ModelSpec, Part, PlanError
from kvproof.reference.planner.plan import GIB, Plan, PlanSettings
from kvproof.reference.planner.planner import longest_fitting, make_plan
from kvproof.reference.planner.rules import RULES, read_plan

KEYS = (Part("k", 8, 64, "bfloat16"), Part("v", 8, 64, "bfloat16"))
TOKEN = 2 * 8 * 64 * 2
"""Bytes per layer and token of them."""

HYBRID = PlanSettings(memory=(64 * GIB,), max_len=4096, block_size=16, max_batch_tokens=2048)


def model(kinds: Sequence[tuple[str, int]], parts: tuple[Part, ...] = KEYS) -> ModelSpec:
    layers = [
        LayerSpec(f"layers.{i}", i, kind, parts, size) for i, (kind, size) in enumerate(kinds)
    ]
    return ModelSpec("test", len(layers), tuple(layers))


def hybrid(full: int, windows: int) -> ModelSpec:
    return model([("full", 0)] * full + [("window", 1024)] * windows)


def vllm_requests(full: int, windows: int, length: int) -> float:
    """Concurrency by the rule of vLLM 0.33: groups of the smaller layer count, or of the larger
    one if that is less than 1.5 times as many; blocks over the blocks of one request."""
    low, high = min(full, windows), max(full, windows)
    size = high if high < 1.5 * low else low
    full_groups, window_groups = -(-full // size), -(-windows // size)
    blocks = 64 * GIB // (size * 16 * TOKEN)
    window = min(-(-(1023 + 2048) // 16) + 1, -(-length // 16))
    return blocks / (full_groups * -(-length // 16) + window_groups * window)


def broken(plan: Plan) -> list[str]:
    return [text for rule in RULES for text in rule(plan)]


def test_20_full_and_30_window_layers_hold_what_five_groups_of_ten_hold() -> None:
    assert int(vllm_requests(20, 30, 4096)) == 163
    five = 64 * GIB // (10 * 16 * TOKEN) / (2 * 256 + 3 * 193)
    assert int(five) == 192
    plan = make_plan(hybrid(20, 30), HYBRID)
    assert capacity(plan).requests >= 192
    assert [len(group.layers) for group in plan.groups] == [10] * 5
    assert broken(plan) == []


@pytest.mark.parametrize("length", [4096, 32_768, 131_072])
@pytest.mark.parametrize("layers", [(20, 30), (10, 16), (9, 7), (13, 12), (10, 20)])
def test_never_worse_than_the_rule_of_engines(layers: tuple[int, int], length: int) -> None:
    plan = make_plan(hybrid(*layers), replace(HYBRID, max_len=length))
    ours = capacity(plan).requests_exact
    assert ours >= vllm_requests(*layers, length) * (1 - 0.002 * len(plan.groups))
    more = [choice.requests for choice in plan.choices]
    assert more == sorted(more), "another group is only listed if it gains something"
    assert ours in more


def test_a_request_is_spelled_out_by_hand() -> None:
    plan = make_plan(hybrid(2, 2), replace(HYBRID, max_len=4096))
    assert [(g.kind, g.block_size, len(g.layers)) for g in plan.groups] == [
        ("full", 16, 2),
        ("window", 16, 2),
    ]
    needed = need(plan, 4096)
    assert needed.blocks == (256, 193)
    assert needed.bytes == (256 + 193) * 2 * 16 * TOKEN
    assert needed.padding == 0
    assert needed.rounding == (193 * 16 - 3071) * 2 * TOKEN
    assert need(plan, 17).blocks == (2, 2)


def test_unequal_pages_are_made_equal_by_unequal_blocks() -> None:
    wide, narrow = Part("kv", 1, 512, "bfloat16"), Part("kv", 1, 256, "bfloat16")
    layers = [
        LayerSpec(f"layers.{i}", i, "full" if i < 4 else "window", (wide if i < 4 else narrow,),
                  0 if i < 4 else 256)
        for i in range(8)
    ]  # fmt: skip
    plan = make_plan(ModelSpec("test", 8, tuple(layers)), replace(HYBRID, max_len=65_536))
    assert [group.block_size for group in plan.groups] == [16, 32]
    assert plan.unit == 32
    assert need(plan, 65_536).padding == 0
    assert broken(plan) == []


def test_the_bound_on_the_unit_is_kept_and_paid_for() -> None:
    free = make_plan(hybrid(10, 16), HYBRID)
    bound = make_plan(hybrid(10, 16), replace(HYBRID, max_unit=16))
    assert free.unit > bound.unit == 16
    with pytest.raises(PlanError, match="max_unit 8 must be at least block_size 16"):
        make_plan(hybrid(1, 1), replace(HYBRID, max_unit=8))


def test_too_little_memory_names_what_is_needed_and_what_fits() -> None:
    settings = replace(HYBRID, memory=(GIB // 4,), max_len=131_072)
    with pytest.raises(PlanError) as caught:
        make_plan(hybrid(20, 30), settings)
    error = caught.value
    assert "GiB" in str(error)
    assert f"{error.longest:,}" in str(error)
    assert "max_len" in error.hint
    assert error.longest == longest_fitting(hybrid(20, 30), settings)
    make_plan(hybrid(20, 30), replace(settings, memory=(error.needed,)))
    make_plan(hybrid(20, 30), replace(settings, max_len=error.longest))
    for changed in ({"memory": (error.needed - 1,)}, {"max_len": error.longest + 1}):
        with pytest.raises(PlanError):
            make_plan(hybrid(20, 30), replace(settings, **changed))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"memory": ()}, "no memory"),
        ({"max_len": 0}, "max_len 0 must be at least 1"),
        ({"max_len": 2**31 + 1}, "int32"),
        ({"kernel_block_size": 5}, "5 must divide block_size 16"),
        ({"num_blocks": 1}, "null block alone"),
        ({"num_blocks": 10}, "num_blocks 10 is too few"),
        ({"drafts": 2048}, "drafts 2048 must be less"),
        ({"state_pool": "both"}, "state_pool 'both'"),
    ],
)
def test_settings_that_no_plan_can_have_are_refused(changed: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make_plan(hybrid(2, 2), replace(HYBRID, **changed))


def test_a_separate_state_pool_must_hold_one_request() -> None:
    recurrent = model([("state", 0), ("full", 0)])
    settings = replace(HYBRID, state_pool="separate", max_requests=2, drafts=2)
    with pytest.raises(PlanError, match="give 2 state rows"):
        make_plan(recurrent, settings)


def test_a_fixed_number_of_blocks_is_kept_and_said() -> None:
    plan = make_plan(hybrid(2, 2), replace(HYBRID, num_blocks=1000))
    assert plan.num_blocks == 1000
    assert any("1,000 blocks as asked for; memory holds" in note for note in plan.notes)


def test_keeping_windows_whole_is_one_group_and_says_what_it_costs() -> None:
    plan = make_plan(hybrid(20, 30), replace(HYBRID, hybrid_groups=False))
    assert [(g.kind, len(g.layers)) for g in plan.groups] == [("full", 50)]
    assert capacity(plan).requests == 163
    assert any("163 run at once instead of 192" in note for note in plan.notes)


def test_a_window_that_no_request_outgrows_is_full_attention() -> None:
    plan = make_plan(hybrid(3, 3), replace(HYBRID, max_len=1024))
    assert [(g.kind, len(g.layers)) for g in plan.groups] == [("full", 6)]


def test_pipeline_stages_have_the_same_groups_and_the_smallest_number_of_blocks() -> None:
    plan = make_plan(hybrid(10, 20), replace(HYBRID, memory=(8 * GIB, 4 * GIB, 8 * GIB)))
    assert broken(plan) == []
    assert plan.num_blocks == min(w.memory // w.block_bytes for w in plan.workers)
    assert all(len(worker.used) == len(plan.groups) for worker in plan.workers)
    full = [index for index, group in enumerate(plan.groups) if group.kind == "full"]
    assert [any(worker.used[i] for i in full) for worker in plan.workers] == [True, False, False]


def test_a_stage_too_many_and_a_shared_layer_across_stages_are_refused() -> None:
    with pytest.raises(PlanError, match="2 layers cannot be split over 3"):
        make_plan(hybrid(1, 1), replace(HYBRID, memory=(GIB,) * 3))
    layers = (LayerSpec("a", 0, "full", KEYS), LayerSpec("b", 1, "shared", owner="a"))
    with pytest.raises(PlanError, match="on another of 2 pipeline stages"):
        make_plan(ModelSpec("test", 2, layers), replace(HYBRID, memory=(GIB, GIB)))


def test_a_model_without_attention_has_a_block_for_each_state() -> None:
    plan = make_plan(model([("state", 0)] * 3, (Part("s", 1, 1 << 20, "float32"),)), HYBRID)
    (group,) = plan.groups
    assert (group.kind, group.state_blocks) == ("state", 1)
    assert plan.workers[0].block_bytes == 3 << 22
    assert longest_length(plan, plan.usable) is None


def test_a_state_fills_as_few_blocks_as_hold_it() -> None:
    layers = [LayerSpec(f"a{i}", i, "full", KEYS) for i in range(4)]
    state = LayerSpec("s", 4, "state", (Part("s", 1, 1_000_000, "uint8"),))
    plan = make_plan(ModelSpec("test", 5, (*layers, state)), HYBRID)
    row = plan.workers[0].block_bytes
    count = next(g.state_blocks for g in plan.groups if g.kind == "state")
    assert (count - 1) * row < 1_000_000 <= count * row
    assert any("of which is lost" in note for note in plan.notes)


@pytest.mark.parametrize("full", [0, 1, 3])
def test_the_cache_manager_runs_as_many_requests_as_stated(full: int) -> None:
    """Every request at its longest, computed in the largest steps, all at once."""
    kinds = [("full", 0)] * full + [("window", 24)] * 4 + [("chunk", 32)] * 2
    settings = PlanSettings(memory=(150_000,), max_len=150, block_size=4, max_batch_tokens=16)
    plan = make_plan(model(kinds, (Part("kv", 1, 16, "uint8"),)), settings)
    stated = capacity(plan)
    manager = CacheManager(replace(plan.cache_config(), enable_prefix_caching=False))
    assert stated.requests >= 3
    for start in range(0, settings.max_len, 16):
        size = min(16, settings.max_len - start)
        step = manager.begin_step()
        for number in range(stated.requests):
            name, tokens = f"r{number}", list(range(settings.max_len))
            if start == 0:
                done = manager.admit(name, tokens, compute=size)
            else:
                done = manager.extend(name, compute=size)
            assert not isinstance(done, Refusal), (start, number, done)
        manager.end_step(step)


def test_a_plan_survives_json_and_a_changed_one_is_refused() -> None:
    plan = make_plan(hybrid(3, 2), replace(HYBRID, drafts=2))
    data = plan.to_json()
    assert read_plan(data) == plan
    for old, new in (
        (b'"schema": 1', b'"schema": 9'),
        (b'"num_blocks": %d,\n "choices"' % plan.num_blocks,
         b'"num_blocks": %d,\n "choices"' % (2 * plan.num_blocks)),
        (b'"layers.4"', b'"layers.3"'),
        (b'"offset": 16384', b'"offset": 0'),
        (b'"kind": "window"', b'"kind": "ring"'),
    ):  # fmt: skip
        assert old in data, old
        with pytest.raises(PlanError):
            read_plan(data.replace(old, new))
    with pytest.raises(PlanError, match="this is no plan"):
        read_plan(b"{}")
