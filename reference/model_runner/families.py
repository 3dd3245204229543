"""Which families run, and why others do not."""

from __future__ import annotations

from typing import Any

from kvproof.reference.model_runner.specs import UnsupportedModel

TESTED = (
    "axk2",
    "bamba",
    "deepseek_v3",
    "deepseek_v32",
    "dots3_note_text",
    "falcon_h1",
    "gemma3",
    "gemma3_text",
    "gemma3n_text",
    "gemma4_text",
    "glm_moe_dsa",
    "gpt_oss",
    "hy_v3",
    "hy_v4",
    "kimi_linear",
    "lfm2",
    "llama",
    "llama4_text",
    "mamba2",
    "nemotron_h",
    "qwen2_5_vl",
    "qwen3",
    "qwen3_5_moe",
    "qwen3_5_moe_text",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_vl",
)
"""`model_type` of the families in `kvproof.suites.tests.lab.parity.tiny_models`."""

TESTED_WITH = ("5.17.0", "5.23.0")
"""Versions of transformers with which the parity suite has run on all of them that they have."""

_OWN_CACHE = "keeps its cache in classes of its own, which page differently"
_FIELDS = "reads or keeps fields of a cache layer, past the calls of transformers' caches"
_MAMBA_1 = (
    "is Mamba-1: the scan of transformers takes no initial state, so a prompt in chunks is "
    "computed as if each chunk were the first"
)
_IN_MODULES = "keeps its state in its own modules, where all requests share it"
_PREFIX_LM = (
    "attends from all tokens of a prompt to all others (prefix-LM attention), so that no entry of "
    "one prompt can serve another"
)
_CROSS = "reads images by cross-attention, whose keys and values belong to no token of the prompt"
REFUSED = {
    "deepseek_v4": _OWN_CACHE,
    "falcon_mamba": _MAMBA_1,
    "glm5_next": _FIELDS,
    "jamba": _MAMBA_1,
    "mamba": _MAMBA_1,
    "minimax": _OWN_CACHE,
    "minimax_m3_vl": _OWN_CACHE,
    "mllama": _CROSS,
    "paligemma": _PREFIX_LM,
    "qwen4_exp": _FIELDS,
    "qwen4_exp_text": _FIELDS,
    "recurrent_gemma": _IN_MODULES,
    "rwkv": "keeps its state outside the cache of transformers, in an argument of its own",
    "xlstm": _OWN_CACHE,
    "zamba": _MAMBA_1,
}
"""`model_type` -> the reason against it."""


def check_family(config: Any) -> None:
    """Raise UnsupportedModel for a family that cannot run; untested ones are left to self-check."""
    family = config.model_type
    reason = REFUSED.get(family, "")
    if not reason and config.is_encoder_decoder:
        reason = "has an encoder for text; only decoders run"
    found = config.architectures or ()
    architectures = list(map(str, found if isinstance(found, list | tuple) else [found]))
    if not reason and not any(name.endswith(_GENERATES) for name in architectures):
        reason = f"generates no text: its architectures are {architectures}"
    if reason:
        raise UnsupportedModel(f"family {family} {reason}; tested are {', '.join(TESTED)}")


_GENERATES = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
