"""Traits of vLLM's own loop for the suite `engine`: its connectors, settings, groups, workers.

Standard library only: the values can be read without vLLM. What a release lacks comes from
`releases.lacking`, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from kvproof.harness.adapters.vllm_engine.exclusions import (
    DRAFT_SETTINGS,
    NOT_DRIVEN,
    REFUSED,
    one_group_beside_tiers,
)
from kvproof.harness.contract.whole_engine_traits import (
    FEATURES,
    DraftMethod,
    Layouts,
    Link,
    LocalKind,
    Runner,
    Tier,
    WholeEngineTraits,
    Workers,
)

BLOCK_SIZES = (16, 4, 4, 7, 7, 9)
"""Tokens. Any number is legal; of these 16 and 4 alone share a divisor."""
_SETTINGS = {
    "long_prefill_token_threshold": (2, 3, 7, 16, 17, 20),
    "scheduler_reserve_full_isl": (False,),
    "watermark": (0.01, 0.2, 0.5),
    "max_num_active_seqs": (1, 2),
    "prefill_schedule_interval": (2, 3),
    "disable_chunked_mm_input": (True,),
    "long_prefill_token_threshold_adaptive": (True,),
    "max_num_scheduled_tokens": (5, 7, 17),
    "prefix_caching_hash_algo": ("sha256_cbor", "xxhash"),
    "prefix_cache_retention_interval": (None,),
    **dict.fromkeys(DRAFT_SETTINGS, (True,)),
}
_IN_BLOCKS = {
    "prefix_cache_retention_interval": (1, 2, 3),
    "prefix_match_unit": (1 / 7, 1 / 4, 1 / 3, 1 / 2, 1),
}
_OFFLOAD = {
    "blocks_per_chunk": (2, 3),
    "offload_prompt_only": (False,),
    "eviction_policy": ("arc",),
    "store_threshold": (2, 3),
    "max_tracker_size": (1, 5),
    "sync_load_budget_bytes": (1 << 8, 1 << 12),
    "self_describing_kv_events": (True,),
}
_DRAFTS = (
    DraftMethod(name="eagle"),
    DraftMethod(name="mtp"),
    DraftMethod(name="ngram", on_host=True),
)
_RATIOS = (2, 3, 4, 7)
_LOCAL = (
    LocalKind("window", ((0, 3), (1, -4), (1, -1), (1, 0), (1, 1), (2, 3), (3, -5))),
    LocalKind("chunk", ((1, 0), (2, 0), (3, 0))),
)
_ROLES = (("consumer", "producer"), ("both", "both"))
_POLICIES = ("recompute", "fail")


def traits(lacking: Mapping[str, str]) -> WholeEngineTraits:
    """Return the traits of a release.

    `lacking`: feature, need or name of a connector, runner or link -> why the release has it not.
    """
    lacking = {**_LACKING, **lacking}

    def why(*names: str) -> str:
        return next((lacking[name] for name in names if name in lacking), "")

    return WholeEngineTraits(
        features=tuple(name for name in FEATURES if name not in lacking),
        refuses={name: lacking[name] for name in _REFUSABLE if name in lacking},
        block_sizes=BLOCK_SIZES,
        kernel_block_sizes=(0, 1, 2, 4, 8),
        policies=("fcfs", "fcfs", "priority"),
        settings=_SETTINGS,
        settings_in_blocks=_IN_BLOCKS,
        sleep_levels=(0, 1, 1, 2),
        local=() if why("windows") else _LOCAL,
        ratios=() if why("entries") else _RATIOS,
        runners=(Runner(name="v1"), Runner(name="v2", refused=why("v2"))),
        drafts=_DRAFTS,
        tiers=(
            Tier(
                name="offload",
                repeats=True,
                settings=_OFFLOAD,
                refused=why("offload"),
            ),
            Tier(name="simple", repeats=True, refused=why("simple")),
            Tier(name="simple_lazy", repeats=True, refused=why("simple")),
            Tier(name="multi", repeats=True, refused=why("offload", "simple")),
            *(
                Tier(
                    name=f"failing_{mode}_{policy}",
                    repeats=True,
                    loses=True,
                    refused=why("failing"),
                )
                for mode, policy in product(("sync", "async"), _POLICIES)
            ),
            Tier(name="example", whole_prompts=True, loses=True, refused=why("example")),
            Tier(name="lmcache", loses=True, heads=(1, 2), refused=why("lmcache")),
        ),
        links=(_link("pull", why("nixl")), _link("push", why("nixl"))),
        excluded=(*REFUSED, *NOT_DRIVEN, *one_group_beside_tiers(why("groups beside tiers"))),
    )


_LACKING = {
    "trees of drafts": "vLLM's drafts of a step are a line of tokens, which stay where they are",
    "sessions": "vLLM has no sessions: each turn is a request of its own",
    "pipeline stages": "each stage is a process of its executors; steps in flight are those of "
    "asynchronous scheduling",
    "context ranks": "the slots of a rank are made by the worker's Triton kernel: vllm has the "
    "manager's blocks",
}
_REFUSABLE = (
    "trees of drafts",
    "entries",
    "pipeline stages",
    "context ranks",
    "states",
    "reset of running requests",
    "unread",
    "windows",
    "sessions",
)


def _link(copies: str, refused: str) -> Link:
    pull = copies == "pull"
    return Link(
        copies=copies,
        connector=f"nixl_{copies}_{{role}}_{{policy}}",
        roles=_ROLES,
        policies=_POLICIES,
        heads=(1, 2, 2, 4),
        other_blocks=0.5 if pull else 2,
        workers=tuple(
            Workers(heads=heads, equal_blocks=equal, pairs=_pairs(copies, heads, equal=equal))
            for heads, equal in product((1, 2, 4), (True, False))
        ),
        layouts=(
            Layouts(),
            Layouts(prefill="NHD", decode="NHD", equal_workers=True),
            *((Layouts(prefill="HND", decode="NHD", one_group=True),) if pull else ()),
        ),
        refused=refused,
    )


def _pairs(copies: str, heads: int, *, equal: bool) -> tuple[tuple[int, int], ...]:
    return tuple(
        (prefill, decode)
        for prefill, decode in product((1, 2, 4), repeat=2)
        if max(prefill, decode) <= 2 * heads
        and _taken(copies, prefill, decode, heads=heads, equal=equal)
    )


def _taken(copies: str, prefill: int, decode: int, *, heads: int, equal: bool) -> bool:
    """Tell whether vLLM takes these numbers of workers.

    The engine that copies may have fewer workers than the other one if each head is in one worker
    and blocks are equal. By push, repeated heads are for equal numbers.
    """
    active, other = (decode, prefill) if copies == "pull" else (prefill, decode)
    repeated = max(prefill, decode) > heads
    if active >= other:
        return active == other or copies == "pull" or not repeated
    return equal and not repeated
