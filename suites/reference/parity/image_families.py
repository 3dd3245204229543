"""Tiny models that also take images."""

from __future__ import annotations

from kvproof.suites.reference.parity.fields import (
    DELTA,
    GROUPED,
    IMAGE,
    IMAGE_END,
    IMAGE_START,
    VIDEO,
    WINDOWS,
    Family,
    Fields,
    without,
)

_VISION: Fields = {
    "depth": 3,
    "num_heads": 2,
    "intermediate_size": 48,
    "patch_size": 4,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
    "in_channels": 3,
    "out_hidden_size": 64,
    "initializer_range": 0.15,
}
_IMAGE_TOKENS: Fields = {
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
    "vision_start_token_id": IMAGE_START,
    "vision_end_token_id": IMAGE_END,
    "tie_word_embeddings": False,
}


def _mrope(sections: list[int], **more: object) -> Fields:
    rope = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": sections, **more}
    return {"rope_parameters": rope}


IMAGE_FAMILIES: dict[str, Family] = {
    "qwen3_vl": Family(
        "Qwen3VLForConditionalGeneration",
        "Qwen3VLConfig",
        {
            "text_config": {**GROUPED, **_mrope([3, 3, 2], mrope_interleaved=True)},
            "vision_config": {
                **_VISION,
                "hidden_size": 32,
                "num_position_embeddings": 64,
                "deepstack_visual_indexes": [0, 1],
            },
            **_IMAGE_TOKENS,
        },
        "images, deep stack",
        image=True,
    ),
    "qwen2_5_vl": Family(
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen2_5_VLConfig",
        {
            "text_config": {**without(GROUPED, "head_dim"), **_mrope([3, 3, 2])},
            "vision_config": {
                **_VISION,
                "hidden_size": 32,
                "fullatt_block_indexes": [1, 2],
                "window_size": 16,
            },
            **_IMAGE_TOKENS,
        },
        "images",
        image=True,
    ),
    "qwen3_5_moe_vl": Family(
        "Qwen3_5MoeForConditionalGeneration",
        "Qwen3_5MoeConfig",
        {
            "text_config": {
                **GROUPED,
                **DELTA,
                **_mrope([1, 1, 0], mrope_interleaved=True, partial_rotary_factor=0.25),
            },
            "vision_config": {**_VISION, "hidden_size": 32, "num_position_embeddings": 64},
            **_IMAGE_TOKENS,
        },
        "images, gated delta rule, experts",
        image=True,
    ),
    "gemma3_vl": Family(
        "Gemma3ForConditionalGeneration",
        "Gemma3Config",
        {
            "text_config": {**GROUPED, **WINDOWS, "query_pre_attn_scalar": 16},
            "vision_config": {
                "hidden_size": 32,
                "intermediate_size": 48,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "image_size": 32,
                "patch_size": 4,
            },
            "image_token_id": IMAGE,
            "image_token_index": IMAGE,
            "boi_token_index": IMAGE_START,
            "eoi_token_index": IMAGE_END,
            "mm_tokens_per_image": 16,
            "tie_word_embeddings": False,
        },
        "images attended to in both directions, windows",
        image=True,
    ),
}
