"""Models of today on 1, 2 and 8 ranks, against bytes worked out by hand (Q1, Q3, Q4, Q8)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvproof.reference.planner.capacity import capacity
from kvproof.reference.planner.hf_config import read_model
from kvproof.reference.planner.layer_spec import LayerSpec, ModelSpec, Part, PlanError
from kvproof.reference.planner.plan import GIB, Plan, PlanSettings
from kvproof.reference.planner.planner import make_plan
from kvproof.suites.tests.cli.cli_kit import here, refused

CONFIGS = Path(__file__).parent / "model_configs"
LATENTS = 61 * (656 + 132)
"""Bytes of a token of DeepSeek V3.2: FP8 latents with their scales, and keys of the indexer."""
V4 = 512 // 4 * 21 * (584 + 132) + 512 // 128 * 20 * 584 + 512 * 43 * 584
"""Bytes of 512 tokens of DeepSeek V4: entries of 4 and of 128 tokens, and windows."""
V4_INPUTS = 512 * (21 * (8192 + 2048) + 20 * 4096)
"""Keys and scores that compressors keep of 512 tokens."""
KEYS = 2 * 256 * 2
"""Bytes of the keys and values of one head of 256."""


def plan(name: str, *, tensor: int = 1, dtype: str = "auto", **settings: int) -> Plan:
    model = read_model(json.loads((CONFIGS / f"{name}.json").read_text()), kv_dtype=dtype)
    asked = {"max_len": 65_536, "block_size": 128, **settings}
    stages = asked.pop("stages", 1)
    return make_plan(
        model, PlanSettings(memory=(40 * GIB,) * stages, **asked), tensor_parallel=tensor
    )


def bytes_of(made: Plan, tokens: int) -> int:
    """Bytes that a rank of every stage has for so many tokens, of all groups with tokens."""
    return sum(
        used * tokens // group.block_size
        for worker in made.workers
        for group, used in zip(made.groups, worker.used, strict=True)
        if group.kind != "state"
    )


@pytest.mark.parametrize(
    ("name", "dtype", "tokens", "ranks"),
    [
        ("deepseek_v3_2", "fp8_ds_mla", 1, {1: LATENTS, 2: LATENTS, 8: LATENTS}),
        ("deepseek_v4_flash", "fp8_ds_mla", 512, dict.fromkeys((1, 2, 8), V4 + V4_INPUTS)),
        ("gemma_3n_e4b", "auto", 1, {1: 20 * 2 * KEYS, 2: 20 * KEYS, 8: 20 * KEYS}),
        ("qwen3_next_80b_a3b", "auto", 1, {1: 12 * 2 * KEYS, 2: 12 * KEYS, 8: 12 * KEYS}),
    ],
)
def test_heads_are_divided_among_ranks_and_latents_are_not(
    name: str, dtype: str, tokens: int, ranks: dict[int, int]
) -> None:
    found = {ranks: bytes_of(plan(name, tensor=ranks, dtype=dtype), tokens) for ranks in ranks}
    assert found == ranks


@pytest.mark.parametrize(
    ("name", "dtype", "ranks", "blocks", "requests"),
    [
        *(("deepseek_v3_2", "fp8_ds_mla", ranks, 6_980, 13.6309) for ranks in (1, 2, 8)),
        ("gemma_3n_e4b", "auto", 1, 40_960, 51.9784),
        ("gemma_3n_e4b", "auto", 2, 81_920, 103.9581),
        ("gemma_3n_e4b", "auto", 8, 81_920, 103.9581),
    ],
)
def test_blocks_and_requests_are_those_of_vllm(
    name: str, dtype: str, ranks: int, blocks: int, requests: float
) -> None:
    """Of 40 GiB, by the planning code of vLLM 0.33.0 for the specs that its models give."""
    made = plan(name, tensor=ranks, dtype=dtype)
    assert made.num_blocks == blocks
    assert capacity(made).requests_exact == pytest.approx(requests, rel=1e-4)


@pytest.mark.parametrize(
    ("ranks", "size", "blocks", "requests"),
    [(1, 1_056, 1_654, 25.0606), (2, 1_056, 3_309, 50.1364), (8, 272, 12_850, 52.6639)],
)
def test_states_take_the_blocks_of_vllm(
    ranks: int, size: int, blocks: int, requests: float
) -> None:
    """Of 40 GiB, by vLLM's own shapes with float32 states; it counts its null block, too."""
    made = plan("qwen3_next_80b_a3b", tensor=ranks, block_size=size)
    assert made.num_blocks == blocks
    counted = capacity(made).requests_exact * blocks / (blocks - 1)
    assert counted == pytest.approx(requests, rel=1e-5)


def test_more_requests_of_deepseek_v4_fit_than_in_the_groups_of_vllm() -> None:
    """It takes 62 layers of entries as one group, and pages of 11.8704 requests."""
    made = plan("deepseek_v4_flash", dtype="fp8_ds_mla", block_size=256)
    assert 11.8704 < capacity(made).requests_exact < 1.1 * 11.8704


@pytest.mark.parametrize("ranks", [2, 8])
def test_context_ranks_divide_the_tokens_of_latents(ranks: int) -> None:
    whole = plan("deepseek_v3_2", dtype="fp8_ds_mla")
    shared = plan("deepseek_v3_2", dtype="fp8_ds_mla", context_parallel=ranks, interleave=4)
    assert bytes_of(shared, 128) == LATENTS * 128 // ranks
    assert capacity(shared).tokens // capacity(whole).tokens == ranks
    assert shared.blocks(65_536) == whole.blocks(65_536)


@pytest.mark.parametrize("stages", [2, 8])
def test_stages_have_the_bytes_of_one_worker(stages: int) -> None:
    assert bytes_of(plan("deepseek_v4_flash", dtype="fp8_ds_mla", stages=stages), 512) == (
        V4 + V4_INPUTS
    )


def test_shared_layers_stay_with_their_owner_or_the_stages_are_refused() -> None:
    with pytest.raises(PlanError, match="which is on another of 8 pipeline stages"):
        plan("gemma_3n_e4b", stages=8)


@pytest.mark.parametrize(
    ("dtype", "values"),
    [("fp8_per_token_head", 256), ("int8_per_token_head", 256), ("int4_per_token_head", 128)],
)
def test_scales_are_bytes_of_a_page(dtype: str, values: int) -> None:
    assert bytes_of(plan("gemma_3n_e4b", dtype=dtype), 1) == 20 * 2 * 2 * (values + 4)


def test_a_latent_has_no_scale_for_each_head() -> None:
    with pytest.raises(PlanError, match="'deepseek_v3' has a latent"):
        plan("deepseek_v3", dtype="int8_per_token_head")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"block_size": 64}, "kernel blocks of 64 tokens cut entries, of 128 tokens"),
        ({"context_parallel": 2}, "interleave 1 cuts entries of 128 tokens"),
        (
            {"context_parallel": 2, "interleave": 128},
            "kernel blocks of 128 tokens cut turns of all ranks, of 256 tokens",
        ),
        (
            {"context_parallel": 2, "interleave": 128, "block_size": 256},
            "context parallel ranks share full attention only, the model has a window",
        ),
        ({"interleave": 0}, "interleave 0 must be at least 1"),
    ],
)
def test_blocks_hold_whole_entries_and_turns(settings: dict[str, int], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        plan("deepseek_v4_flash", **settings)


def test_a_state_has_no_entries_of_several_tokens() -> None:
    layer = LayerSpec("s", 0, "state", (Part("s", 1, 64, "uint8"),), ratio=4)
    with pytest.raises(PlanError, match="of a state exactly 1, not 4"):
        ModelSpec("m", 1, (layer,))


def test_ratios_of_every_layer_are_required() -> None:
    config = json.loads((CONFIGS / "deepseek_v4_flash.json").read_text())
    config["compress_ratios"] = [0, 4]
    with pytest.raises(PlanError, match="compress_ratios"):
        read_model(config)


def test_the_table_names_entries_and_ranks(tmp_path: Path) -> None:
    v4, v32 = (str(CONFIGS / f"deepseek_{name}.json") for name in ("v4_flash", "v3_2"))
    asked = ("--memory", "40GiB", "--max-len", "65536", "--block-size", "256")
    done = here("plan", "--model-config", v4, *asked, cwd=tmp_path)
    assert done.code == 0, done.err
    assert "all, entries of 128" in done.out
    done = here("plan", "--model-config", v32, *asked, "--context-parallel", "8", cwd=tmp_path)
    assert "8 context-parallel ranks with 1 token in turn" in " ".join(done.out.split())
    done = here("plan", "--model-config", v4, *asked, "--context-parallel", "2", cwd=tmp_path)
    refused(done, "interleave 1 cuts entries", "choose a multiple of 128")
