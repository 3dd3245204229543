"""What vLLM refuses together, and what its worker here does not drive, with the reasons."""

from __future__ import annotations

from collections.abc import Mapping

from kvproof.harness.contract.factors import Excluded, never

_LINKS = ("pull", "push")
_FAILING = (
    "failing_sync_recompute",
    "failing_sync_fail",
    "failing_async_recompute",
    "failing_async_fail",
)
_STORES = ("example", "lmcache")
_TIERS = ("offload", "simple", "simple_lazy", "multi", *_FAILING, *_STORES)
_SEVERAL: tuple[Mapping[str, str | tuple[str, ...]], ...] = (
    {"window": ("one", "two")},
    {"chunk": "on"},
    {"states": "on"},
)
"""Levels by which there are several groups."""
DRAFT_SETTINGS = ("disable_eagle_block_drop", "disable_lookahead_block_hashes")
"""Settings of drafts by a model."""
NO_RESET = (
    "Failed to reset KV cache [...] due to the presence of running requests waiting for remote KV "
    "transfer, which is not supported yet"
)
_ONE_GROUP_FAILS = (
    "A KV connector reported block-level load failures (invalid_block_ids) which is not supported "
    "for models with multiple KV cache groups"
)
_PUSHED = tuple({"connector": "push", **several} for several in _SEVERAL[:2])

REFUSED = (
    *(
        never(
            "it is a setting of EAGLE-like speculative methods",
            {"drafts": ("none", "ngram"), f"setting {name}": "on"},
        )
        for name in DRAFT_SETTINGS
    ),
    never(
        "prefix_cache_retention_interval is set but this model has no sliding-window or Mamba KV "
        "cache group, so retention has no effect",
        {"window": "none", "states": "off", "setting prefix_cache_retention_interval": "on"},
    ),
    never(
        "Invalid prefix_match_unit: with a single KV cache group, prefix-cache hits land on the "
        "block size",
        {"window": "none", "chunk": "off", "states": "off", "setting prefix_match_unit": "on"},
    ),
    never(
        "--mamba-block-size can only be set with --enable-prefix-caching",
        {"states": "on", "caching": "off"},
    ),
    never(
        "Chunked MM input is required because we need the flexibility to schedule a multiple of "
        "block_size tokens even if they are in the middle of a mm input",
        {"states": "on", "setting disable_chunked_mm_input": "on"},
    ),
    *(
        never(
            "Chunked MM input disabled but max_tokens_per_mm_item is larger than "
            "max_num_batched_tokens",
            {"media": "on", "setting disable_chunked_mm_input": "on", **small},
        )
        for small in ({"token budget": "few"}, {"token budget": "some", "block size": "4"})
    ),
    never(
        "max_num_active_seqs cannot be greater than max_num_seqs",
        {"setting max_num_active_seqs": "on", "requests": "one"},
    ),
    never(
        "Async scheduling is not supported by the V1 model runner with ngram-based speculative "
        "decoding",
        {"runner": "v1", "drafts": "ngram", "asynchronous": "on"},
    ),
    never(
        "3-read Mamba conv transfer requires DS conv state layout",
        {"connector": _LINKS, "states": "on"},
    ),
    never(
        "Local block size is not divisible by remote block size or vice versa",
        {"connector": "pull", "block size": ("7", "9"), "peer's blocks": "other"},
    ),
    *(
        never(
            "Attention-HMA push requires identical P/D block sizes",
            {**push, "peer's blocks": "other"},
        )
        for push in _PUSHED
    ),
    *(
        never(
            "Attention-HMA push does not support decode TP greater than prefill TP yet",
            {**push, "workers": "unequal"},
        )
        for push in _PUSHED
    ),
    never(NO_RESET, {"connector": (*_TIERS, *_LINKS), "sleep": "on"}),
    *(
        never(
            "Failed to promote local KV cache specs to one unified type",
            {"connector": _STORES, **several},
        )
        for several in _SEVERAL
    ),
    *(never(_ONE_GROUP_FAILS, {"connector": _FAILING, **several}) for several in _SEVERAL),
    never(
        "assert len(local_block_descs_ids) == len(remote_block_descs_ids), in the pull worker",
        {"connector": "pull", "chunk": "on"},
    ),
    never(
        "push block-count mismatch for [...] group [...]: 4 local vs 0 remote blocks, an "
        "AssertionError in the push worker's thread, which goes on without that write",
        {"connector": "push", "chunk": "on"},
    ),
    never(
        "assert num_decode_blocks <= len(prefill_group), and an IndexError in get_transfer_results",
        {"connector": _LINKS, "peer's blocks": "other", "kernel blocks": "parts"},
    ),
)
"""Combinations with vLLM's own words."""

NOT_DRIVEN = (
    never(
        "an image that may not be cut is compared with max_num_batched_tokens alone, and waits for "
        "ever above max_num_scheduled_tokens",
        {
            "media": "on",
            "setting disable_chunked_mm_input": "on",
            "setting max_num_scheduled_tokens": "on",
        },
    ),
    never(
        "its worker hands prompts as embeddings to model runner V1 alone",
        {"runner": "v2", "embeds": "on"},
    ),
    never(
        "its worker keeps recurrent states of model runner V1 alone",
        {"runner": "v2", "states": "on"},
    ),
    never(
        "its worker has the caches of several ranks with model runner V1 alone",
        {"runner": "v2", "connector": _LINKS},
    ),
    never(
        "its worker copies layers with an entry for each token beside connectors",
        {"entries": "on", "connector": (*_TIERS, *_LINKS)},
    ),
    *(
        never(
            "ExampleConnector keeps a chunk under the name of its prompt: its finding is "
            "example_connector_loads_what_it_has_not_kept",
            {"connector": "example", f"setting {name}": "on"},
        )
        for name in ("max_num_scheduled_tokens", "long_prefill_token_threshold")
    ),
    never(
        "ExampleConnector names prompts by their token ids, which embeddings have not",
        {"connector": "example", "embeds": "on"},
    ),
    never(
        "between unequal block sizes vLLM reads windows into the wrong place, in most "
        "histories: its finding is unequal_blocks_shift_a_window",
        {"connector": "pull", "peer's blocks": "other", "window": ("one", "two")},
    ),
    never(
        "ExampleConnector takes the kernel's blocks for its own",
        {"connector": _STORES, "kernel blocks": "parts"},
    ),
)
"""Combinations that are not vLLM's to refuse."""


def of_own_connector(name: str) -> tuple[Excluded, ...]:
    """Return the exclusions of a class of a user's own."""
    parts = never(
        "nothing tells whether the class takes the kernel's blocks for its own",
        {"connector": name, "kernel blocks": "parts"},
    )
    losses = {"connector": name, "losses": "on"}
    return (parts, *(never(_ONE_GROUP_FAILS, {**losses, **several}) for several in _SEVERAL))


def one_group_beside_tiers(reason: str) -> tuple[Excluded, ...]:
    """Return the exclusions of a release where connectors take one group; no reason: none."""
    return tuple(
        never(reason, {"connector": (*_TIERS, *_LINKS), **several})
        for several in _SEVERAL
        if reason
    )
