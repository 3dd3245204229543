"""Traits of SGLang's own loop for the suite `engine`. Standard library only."""

from __future__ import annotations

from kvproof.harness.contract.factors import Excluded, never
from kvproof.harness.contract.whole_engine_traits import (
    DraftMethod,
    LocalKind,
    Tier,
    WholeEngineTraits,
)

_FEATURES = (
    "chunks",
    "preemption",
    "queue",
    "ahead",
    "events",
    "reset",
    "reset of running requests",
    "salts",
    "sessions",
    "states",
)
_NOT_DRIVEN = "it is SGLang's, and this adapter does not drive it yet"
_REFUSES = {
    "adapters": "adapters are loaded by SGLang's own LoRA manager, which is not driven",
    "media": _NOT_DRIVEN,
    "embeds": _NOT_DRIVEN,
    "encoder": _NOT_DRIVEN,
    "sleep": "memory is released by its memory saver, which needs CUDA",
    "two engines": _NOT_DRIVEN,
    "unequal workers": _NOT_DRIVEN,
    "entries": "an indexer's keys and compressed entries are written by kernels of a GPU alone",
    "pipeline stages": "a stage is a process with a scheduler of its own",
    "context ranks": "a rank is a process with a scheduler of its own",
    "unread": "no request is kept from reading the cache",
    "zeroing": "SGLang does not fill new pages",
    "ends that are reported twice": _NOT_DRIVEN,
}
_WITHOUT = {
    "a_block_leaves_the_index_for_another_one": (
        "SGLang evicts whole nodes of its tree, and ahead of need when it retracts"
    ),
}
_INTERVAL, _RELEASE = "SGLANG_SWA_EVICTION_INTERVAL", "SGLANG_OPT_RELEASE_PREFILL_SWA"
_CORE = "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND"
_RATIO = "swa_full_tokens_ratio"
_ONE_POOL = "disable_hybrid_swa_memory"
_OF_WINDOWS = (_INTERVAL, _RELEASE, _RATIO, _ONE_POOL)
_BLOCK_SIZES = (1, 1, 4, 4, 8, 16)
_STRATEGY, _TRACKED = "mamba_radix_cache_strategy", "mamba_track_interval"
_PER_PATH, _SLOTS = "mamba_max_states_per_path", "max_mamba_cache_size"
_OF_STATES = (_STRATEGY, _TRACKED, _PER_PATH, _SLOTS)
_OF_TREES = (_STRATEGY, _TRACKED, _PER_PATH)
_LOCAL = LocalKind("window", ((0, 3), (1, -1), (1, 0), (1, 1), (1, 2), (2, 3), (3, 0)))
"""In SGLang's own count, which leaves the token itself out, 1 and 1 more are around a page."""
_SETTINGS = {
    "SGLANG_TEST_RETRACT": (True,),
    "SGLANG_TEST_RETRACT_INTERVAL": (2, 5),
    "SGLANG_TEST_RETRACT_NO_PREFILL_BS": (1, 2),
    _CORE: ("python",),
    _INTERVAL: (2, 5, 128),
    _RELEASE: (True,),
    _RATIO: (0.3, 0.5, 1.0),
    _ONE_POOL: (True,),
    _STRATEGY: ("extra_buffer_lazy",),
    _PER_PATH: (1, 2),
    _SLOTS: (9, 14),
    "enable_mixed_chunk": (True,),
    "max_prefill_tokens": (8, 40),
    "prefill_decode_interval": (1, 3),
    "prefill_max_requests": (1, 2),
    "priority_scheduling_preemption_threshold": (0, 1),
    "radix_eviction_policy": ("lfu", "fifo", "mru", "filo", "slru", "priority"),
    "schedule_conservativeness": (0.01, 0.3),
    "schedule_policy": ("lpm", "dfs-weight", "lof", "random"),
}

_OF_HICACHE = {
    "hicache_ratio": (0.3, 0.6, 3.0),
    "hicache_write_policy": ("write_back", "write_through_selective"),
}
_HICACHE = (
    Tier(
        name="hicache",
        settings={
            **_OF_HICACHE,
            "hicache_mem_layout": ("layer_first", "page_first_direct", "page_head"),
        },
    ),
    Tier(
        name="hicache_direct",
        settings={**_OF_HICACHE, "hicache_mem_layout": ("layer_first",)},
        given={"hicache_io_backend": "direct"},
    ),
)
"""The connectors with a host tier, one for each way of copying that is asked for."""


def traits() -> WholeEngineTraits:
    """Return the traits of the driven release."""
    return WholeEngineTraits(
        features=_FEATURES,
        refuses=_REFUSES,
        without=_WITHOUT,
        block_sizes=_BLOCK_SIZES,
        policies=("fcfs", "fcfs", "priority"),
        settings=_SETTINGS,
        settings_in_blocks={_TRACKED: (1, 4)},
        local=(_LOCAL,),
        drafts=(DraftMethod(name="ngram", on_host=True, most=6, trees=True),),
        tiers=_HICACHE,
        without_tier=4,
        own_pools=True,
        excluded=_EXCLUDED,
    )


_EXCLUDED: tuple[Excluded, ...] = (
    never(
        "enable-hierarchical-cache and disable-radix-cache are mutually exclusive",
        {"caching": "off", "connector": [each.name for each in _HICACHE]},
    ),
    never(
        "the threshold is that of priorities",
        {"policy": "fcfs", "setting priority_scheduling_preemption_threshold": "on"},
    ),
    never(
        "the tree of Python hashes by an extension that has to be compiled",
        {f"setting {_CORE}": "on", "events": "on"},
    ),
    never("drafts are driven with full attention alone", {"drafts": "ngram", "window": ["one"]}),
    never("drafts are driven without states", {"drafts": "ngram", "states": "on"}),
    never("drafts are driven without sessions", {"drafts": "ngram", "sessions": "on"}),
    never(
        "drafts are driven without a tier next to the pool",
        {"drafts": "ngram", "connector": [each.name for each in _HICACHE]},
    ),
    never(
        "The mixed chunked prefill are disabled because of using ngram speculative decoding.",
        {"drafts": "ngram", "setting enable_mixed_chunk": "on"},
    ),
    never(
        "with pages of several tokens, mixed chunks leave states of other lengths: its finding is "
        "state_of_another_length",
        {
            "states": "on",
            "setting enable_mixed_chunk": "on",
            "block size": [str(each) for each in _BLOCK_SIZES if each > 1],
        },
    ),
    never("states are driven with full attention alone", {"states": "on", "window": ["one"]}),
    never(
        "states are driven without a tier next to the pool",
        {"states": "on", "connector": [each.name for each in _HICACHE]},
    ),
    never("states are driven without sessions", {"states": "on", "sessions": "on"}),
    never(
        "Lazy extra buffer requires overlap schedule (--disable-overlap-schedule is incompatible)",
        {f"setting {_STRATEGY}": "on", "asynchronous": "off"},
    ),
    *(
        never("it is a setting of states in the tree", {"caching": "off", f"setting {name}": "on"})
        for name in _OF_TREES
    ),
    *(
        never("it is a setting of states", {"states": "off", f"setting {name}": "on"})
        for name in _OF_STATES
    ),
    never("streaming sessions run on its radix tree", {"caching": "off", "sessions": "on"}),
    never(
        "a turn that its own window keeps out is ended as aborted",
        {"sessions": "on", f"setting {_RATIO}": "on"},
    ),
    never("all windows of a model have one size", {"window": ["two"]}),
    *(
        never("windows have no pool", {f"setting {_ONE_POOL}": "on", f"setting {name}": "on"})
        for name in _OF_WINDOWS
        if name != _ONE_POOL
    ),
    *(
        never("it is a setting of windows", {"window": ["none"], f"setting {name}": "on"})
        for name in _OF_WINDOWS
    ),
    *(
        never(
            "it is a setting of the test of retraction",
            {"setting SGLANG_TEST_RETRACT": "off", f"setting SGLANG_TEST_RETRACT_{name}": "on"},
        )
        for name in ("INTERVAL", "NO_PREFILL_BS")
    ),
)
