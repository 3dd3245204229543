"""Profiles of the SGLang releases. Engine environment only."""

from __future__ import annotations

from functools import cache

from kvproof.harness.adapters.sglang.api import unified, version
from kvproof.harness.adapters.sglang.host import POLICIES
from kvproof.harness.adapters.sglang.states import REQUEST_ROWS
from kvproof.harness.contract.profile import (
    HostTierProfile,
    InspectionProfile,
    LayerProfile,
    PolicyProfile,
    Profile,
    SpanProfile,
    StateProfile,
)
from kvproof.harness.contract.provenance import declared

UNSUPPORTED = {
    "compression": "entries of DeepSeek V4 lie in pools without a tree, by slots of full attention",
    "sidecars": "an indexer's keys lie under the slots of their layer: a page is one for both",
    "context_ranks": "what a rank has of a page is arithmetic of kernels, on a GPU",
    "max_kernel_ratio": "a page of the allocator is what attention kernels read",
    "embeddings": "a request with embeddings of its own has no prefix to match",
    "batch": "padded tables are made by each attention backend, in kernels",
    "evict": "whole leaves are evicted, of as many pages as were inserted together",
    "lookup": "match_prefix splits nodes and counts as use: nothing asks without a trace",
    "pins": "a lock belongs to a request; pins exist for streaming sessions only",
    "holders": "locks are counted per node, inside the tree core",
    "statistics": "cached tokens are counted by ScheduleBatch.prepare_for_extend",
    "events": "hashes of events are compiled with a C++ compiler when the first is sent",
    "retained": "keys of the tree are in its core, which is not walked",
    "scratch_first": "pages of evicted leaves are sorted among the free ones",
    "validates": "placeholder ranges come checked from the multimodal processor",
    "in_flight_steps": "the scheduler fences frees (free_group), the cache does not",
    "drafts": "rejected drafts are cut off by the scheduler before anything is cached",
    "experts": "rows are captured into a buffer per slot by the model runner, on a GPU",
    "returned_windows": "whole nodes are locked until they cover a window, and a page more is kept",
    "junctions": "a junction is saved where it lies whole pages after the start of a step only",
    "decode_intervals": "the interval of a process is at least the page: it is the page here",
    "prompt_saves": "a forward pass of less than a page keeps no state (sglang#30850)",
    "state_blocks": "a state is one slot of a pool of its own",
    "draft_groups": "drafts of EAGLE turn tokens into pairs, for all groups at once",
    "partial_blocks": "keys end at whole pages",
    "storage below the host": "pages are read and written by threads, in an order of their own",
    "span_clamp": "a match may end inside a span, the encoder runs again for it",
    "encode": "the encoder's own cache decides which spans it computes",
}
"""Capability -> why it is off, in every release."""

_BEFORE_UNIFIED = {
    "eviction_order": "leaves leave by last match or insert; not judged before 0.5.23",
    "keys": "a key and a salt are one text (until 0.5.20)",
    "host_policies": "its HiRadixCache, which 0.5.21 removed, is not driven",
}


_SUITES = {
    "hits": "kvproof.harness.adapters.sglang.hits:hits",
    "media": "kvproof.harness.adapters.sglang.media:media",
}


@cache
def profile() -> Profile:
    """The installed release's."""
    return Profile(
        engine="sglang",
        version=version(),
        block_sizes=(1, 2, 3, 4, 5, 7, 16, 32, 64),
        no_read=True,
        no_store=True,
        evict=False,
        component_suites=_SUITES if unified() else {},
        unsupported=UNSUPPORTED if unified() else {**UNSUPPORTED, **_BEFORE_UNIFIED},
        provenance=declared(
            "match, allocate, publish, release, states, free count, held count, cached count"
            + (", media hashes" if unified() else ""),
            refusal="the room is compared by the adapter, as PrefillAdder does",
            arrival="the scheduler's limit on lengths is imitated",
            unknown_ids="an id that no request has is not passed on",
            reset="the calls of flush_cache are made by the adapter, one by one",
            busy="the adapter asks for an idle engine, as flush_cache does",
            kernel_tables="pages are reported as blocks: the kernels' tables are made on a GPU",
            **({} if unified() else {"media_hashes": "content hashes are handed in"}),
        ),
        narrowed={
            "layouts": "the pairs of kinds that its hybrid caches have",
            "least_blocks": "a pool of one page was not tried",
            "least_window": "a window of one token has no page before it to keep",
            "pools": "each kind of layer has a pool of its own",
            "request_rows": "rows that SGLang plans for each running request",
            "most_state_blocks": "a state is one row",
            "stores": "a state stands for all before it",
            "behind_windows": "pages outside a window may go with their node at any time",
            "span_identity": "a placeholder becomes a number of the hash, without kind and length",
        },
        inspection=InspectionProfile(state=True),
        policy=PolicyProfile(
            reset="idle",
            eviction_order="lru_by_use" if unified() else "undeclared",
            keys=unified(),
        ),
        layers=LayerProfile(
            groups=("full", "window", "state"),
            layouts=(("full", "window"), ("window", "full"), ("full", "state"), ("state", "full")),
            least_blocks=2,
            pools="divided",
            least_window=2,
            behind_windows="freed",
        ),
        recurrent=StateProfile(
            pools=("separate",),
            most_blocks=1,
            block_sizes=() if unified() else (1, 2),
            request_rows=REQUEST_ROWS,
            stores="checkpointed",
            decode_intervals=False,
            prompt_saves="whole",
        ),
        media=SpanProfile(supported=True, identity=("start", "content")),
        host_tier=HostTierProfile(
            policies=POLICIES if unified() else (), groups=("full", "window", "state")
        ),
    )
