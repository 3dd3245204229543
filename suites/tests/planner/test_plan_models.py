"""Layers of real families, against bytes worked out by hand from their published shapes."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kvproof.reference.planner.hf_config import FAMILIES, read_model
from kvproof.reference.planner.layer_spec import LayerSpec, ModelSpec, Part, PlanError
from kvproof.reference.planner.plan import GIB, PlanSettings
from kvproof.reference.planner.planner import make_plan
from kvproof.reference.planner.rules import RULES, read_plan

CONFIGS = Path(__file__).parent / "model_configs"

BF16 = FP32_HALF = 2
MAMBA2 = (128 * 64 + 2 * 128) * 4 * BF16 + 128 * 64 * 128 * 4
"""Bamba and Granite 4: 128 heads of 64, one group, state 128, convolution of 4 columns."""

EXPECTED: dict[str, tuple[dict[str, int], int, int]] = {
    # kinds of layers; bytes per token of all attention layers; bytes of one state
    "llama_3_1_8b": ({"full": 32}, 32 * 2 * 8 * 128 * BF16, 0),
    "qwen3_30b_a3b": ({"full": 48}, 48 * 2 * 4 * 128 * BF16, 0),
    "gpt_oss_20b": ({"full": 12, "window": 12}, 24 * 2 * 8 * 64 * BF16, 0),
    "gemma_3_27b": ({"full": 10, "window": 52}, 62 * 2 * 16 * 128 * BF16, 0),
    "gemma_3n_e4b": ({"full": 4, "window": 16, "shared": 15}, 20 * 2 * 2 * 256 * BF16, 0),
    "llama_4_scout": ({"full": 12, "chunk": 36}, 48 * 2 * 8 * 128 * BF16, 0),
    "deepseek_v3": ({"full": 62}, 62 * (512 + 64) * BF16, 0),
    "deepseek_v3_2": ({"full": 62}, 62 * (1152 + 132), 0),
    "deepseek_v4_flash": (
        {"full": 41, "window": 43 + 41 + 21 + 1},
        (44 + 41) * 512 * BF16 + 21 * 132 + (21 * 8192 + 20 * 4096 + 21 * 2048),
        0,
    ),
    "qwen3_next_80b_a3b": (
        {"full": 12, "state": 36},
        12 * 2 * 2 * 256 * BF16,
        36 * ((2 * 16 * 128 + 32 * 128) * 4 * BF16 + 32 * 128 * 128 * 4),
    ),
    "nemotron_h_8b": (
        {"full": 4, "state": 24},
        4 * 2 * 8 * 128 * BF16,
        24 * ((128 * 64 + 2 * 8 * 128) * 4 * BF16 + 128 * 64 * 128 * 4),
    ),
    "bamba_9b": ({"full": 3, "state": 29}, 3 * 2 * 8 * 128 * BF16, 29 * MAMBA2),
    "granite_4_h_small": ({"full": 4, "state": 36}, 4 * 2 * 8 * 128 * BF16, 36 * MAMBA2),
    "kimi_linear_48b_a3b": (
        {"full": 7, "state": 20},
        7 * (512 + 64) * BF16,
        20 * (3 * 32 * 128 * 4 * BF16 + 32 * 128 * 128 * 4),
    ),
    "lfm2_1_2b": ({"full": 6, "state": 10}, 6 * 2 * 8 * 64 * BF16, 10 * 2048 * 3 * BF16),
    "falcon_h1_1_5b": (
        {"full": 24, "state": 24},
        24 * 2 * 2 * 128 * BF16,
        24 * ((48 * 64 + 2 * 256) * 4 * BF16 + 48 * 64 * 256 * 4),
    ),
    "mamba2_2_7b": (
        {"state": 64},
        0,
        64 * ((80 * 64 + 2 * 128) * 4 * FP32_HALF + 80 * 64 * 128 * 4),
    ),
}


def config(name: str) -> dict[str, Any]:
    return json.loads((CONFIGS / f"{name}.json").read_text())


def per_token(layers: tuple[LayerSpec, ...]) -> int:
    return sum(layer.nbytes for layer in layers if layer.kind != "state")


def test_every_config_is_expected() -> None:
    assert {path.stem for path in CONFIGS.glob("*.json")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_bytes_are_those_of_hand_calculation(name: str) -> None:
    kinds, token, state = EXPECTED[name]
    model = read_model(config(name))
    assert Counter(layer.kind for layer in model.layers) == kinds
    assert per_token(model.layers) == token
    assert sum(layer.nbytes for layer in model.layers if layer.kind == "state") == state


@pytest.mark.parametrize("changed", [{}, {"drafts": 1}, {"state_pool": "separate"}], ids=str)
@pytest.mark.parametrize("name", EXPECTED)
def test_every_family_is_planned(name: str, changed: dict[str, Any]) -> None:
    model = read_model(config(name))
    asked = {"block_size": 128, **changed}  # of which DeepSeek V4 has entries
    plan = make_plan(model, PlanSettings(memory=(64 * GIB,), max_len=32_768, **asked))
    assert [text for rule in RULES for text in rule(plan)] == []
    assert read_plan(plan.to_json()) == plan
    wanted = {x.name for x in model.layers if "drafts" in changed or not x.draft}
    assert wanted == {x for group in plan.groups for x in (*group.layers, *group.readers)}
    plan.cache_config()


def layer(model: ModelSpec, name: str) -> LayerSpec:
    return next(layer for layer in model.layers if layer.name == name)


def test_sizes_of_windows_and_chunks() -> None:
    gpt, gemma = read_model(config("gpt_oss_20b")), read_model(config("gemma_3_27b"))
    assert layer(gpt, "layers.0").size == 128
    assert layer(gpt, "layers.1").kind == "full"
    assert [x.index for x in gemma.layers if x.kind == "full"] == list(range(5, 62, 6))
    scout = read_model(config("llama_4_scout"))
    assert [x.index for x in scout.layers if x.kind == "full"] == list(range(3, 48, 4))
    assert layer(scout, "layers.0").size == 8192


def test_shared_layers_read_the_last_of_their_kind() -> None:
    model = read_model(config("gemma_3n_e4b"))
    assert layer(model, "layers.20").owner == "layers.18"
    assert layer(model, "layers.24").owner == "layers.19"


def test_the_indexer_stands_beside_the_latent() -> None:
    model = read_model(config("deepseek_v3_2"))
    latent, indexer = layer(model, "layers.7").parts
    assert (latent.nbytes, indexer.nbytes) == (1152, 132)
    assert layer(model, "draft.0").draft
    half = read_model(config("deepseek_v3_2"), kv_dtype="fp8")
    assert layer(half, "layers.7").nbytes == 576 + 132
    mixed = read_model(config("deepseek_v3_2"), kv_dtype="fp8_ds_mla")
    assert layer(mixed, "layers.7").nbytes == 656 + 132


def test_experts_are_noted_not_paged() -> None:
    experts = read_model(config("deepseek_v3")).experts
    assert experts is not None
    assert (experts.layers, experts.per_token, experts.count) == (58, 8, 256)
    assert experts.row_bytes == 58 * 8
    wide = read_model(config("qwen3_next_80b_a3b")).experts
    assert wide is not None
    assert wide.row_bytes == 48 * 10 * 2
    assert read_model(config("llama_3_1_8b")).experts is None


def test_tensor_parallel_ranks_share_heads_and_repeat_latents() -> None:
    llama, deepseek = read_model(config("llama_3_1_8b")), read_model(config("deepseek_v3"))
    assert per_token(llama.on_rank(4).layers) == per_token(llama.layers) // 4
    assert per_token(llama.on_rank(16).layers) == per_token(llama.layers) // 8, "one head each"
    assert per_token(deepseek.on_rank(8).layers) == per_token(deepseek.layers)
    with pytest.raises(PlanError, match="8 heads of 'k' cannot be split over 3 ranks"):
        llama.on_rank(3)


def test_mamba_groups_fewer_than_ranks_are_repeated() -> None:
    state = layer(read_model(config("bamba_9b")), "layers.0")
    x, bc, recurrent = (part.on_rank(4) for part in state.parts)
    assert (x.heads, bc.heads, recurrent.heads) == (32, 1, 32)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model_type": "gpt5"}, "'gpt5' is not known"),
        ({"model_type": None}, "model_type None is not a name"),
        ({"model_type": "llada"}, "tokens change after they were written"),
        ({"model_type": "whisper"}, "cross-attention"),
        ({"is_encoder_decoder": True}, "cross-attention"),
        ({"num_hidden_layers": None}, "has no 'num_hidden_layers'"),
        ({"num_hidden_layers": "many"}, "num_hidden_layers 'many'"),
        ({"num_key_value_heads": 0}, "num_key_value_heads 0"),
        (
            {"num_key_value_heads": 5},
            "num_key_value_heads 5 .* a divisor of num_attention_heads, 32",
        ),
        ({"hidden_size": 4097}, "num_attention_heads 32 .* a divisor of hidden_size, 4097"),
        ({"head_dim": 0}, "head_dim 0 .* at least 1"),
        ({"torch_dtype": "int3"}, "dtype 'int3' is not known"),
        ({"model_type": "qwen3", "layer_types": ["full_attention"]}, "names 1 layers"),
        ({"model_type": "qwen3", "layer_types": ["ring"] * 32}, "layer type 'ring'"),
        ({"model_type": "gemma3n_text", "num_kv_shared_layers": 32}, "num_kv_shared_layers 32"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_field(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        read_model(config("llama_3_1_8b") | changed)


def test_an_unknown_family_is_told_the_known_ones() -> None:
    with pytest.raises(PlanError) as caught:
        read_model({"model_type": "gpt5"})
    assert all(family in caught.value.hint for family in FAMILIES)


def test_a_kv_dtype_that_does_not_fit_is_refused() -> None:
    with pytest.raises(PlanError, match="fp8_ds_mla is for latent attention"):
        read_model(config("llama_3_1_8b"), kv_dtype="fp8_ds_mla")
    with pytest.raises(PlanError, match="'fp3' is not known"):
        read_model(config("llama_3_1_8b"), kv_dtype="fp3")


@pytest.mark.parametrize(
    "layers",
    [
        (LayerSpec("a", 0, "full"),),
        (LayerSpec("a", 0, "window", (Part("k", 1, 1, "fp8"),)),),
        (LayerSpec("a", 0, "shared", owner="b"),),
        (LayerSpec("a", 0, "full", (Part("k", 1, 1, "fp8"),)),) * 2,
    ],
)
def test_specs_that_mean_nothing_are_refused(layers: tuple[LayerSpec, ...]) -> None:
    with pytest.raises(PlanError):
        ModelSpec("test", 1, layers)
