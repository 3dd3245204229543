"""Profiles of the vLLM releases. Engine environment only."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from kvproof.harness.adapters.vllm import latents
from kvproof.harness.adapters.vllm.api import engine, has, hashes_media, release, version
from kvproof.harness.contract.profile import (
    DraftProfile,
    InspectionProfile,
    LayerProfile,
    PolicyProfile,
    Profile,
    SpanProfile,
    StateProfile,
)
from kvproof.harness.contract.provenance import declared

NO_KERNEL_BLOCKS = "kernel blocks are made in the worker's BlockTable, a Triton kernel"

UNSUPPORTED = {
    "max_kernel_ratio": NO_KERNEL_BLOCKS,
    "batch": "padded tables are made in the worker's BlockTable, a Triton kernel",
    "keys": "requests have a salt, and no further key",
    "no_store": "requests can skip reading (skip_reading_prefix_cache), never storing",
    "experts": "rows are kept by the aux-output connector, not by the cache manager",
    "drafts": "rejected drafts are rolled back by the scheduler, not by the cache manager",
    "pins": "no verb holds a cached prefix without a request",
    "events": "extra keys are published untagged, so identity cannot be rebuilt from events",
    "in_flight_steps": "the scheduler fences frees, the cache manager does not",
    "validates": "placeholder ranges come checked from the input processor",
    "duplicates": "blocks computed at the same time are kept twice under one hash",
    "index": "one flat hash map: an entry may outlive the block before it",
    "span_clamp": "hits and steps may end inside a span: its encoder's output is kept apart",
    "encode": "encoder inputs are scheduled and cached apart from the cache manager",
    "partial_blocks": "hits end inside one only where recurrent groups have larger blocks",
    "state_copies": "a state is kept where it was computed, and the next step goes on elsewhere",
    "sidecars": "an indexer's layers lie in the blocks of their group: one table for all of them",
    "prefill_ranks": "its scheduler gives the manager one, whatever prefill context parallel is",
    "interleave": "the worker's slot mapping alone reads cp_kv_cache_interleave_size",
    "circular_buffers": "keys of an open entry lie in one block a request, which is never hit",
    "decode_intervals": "a state is kept at every block border, also while decoding",
}
"""Capability -> why it is off, in every release."""

_HITS = {"hits": "kvproof.harness.adapters.vllm.hits:hits"}
_MEDIA = {"media": "kvproof.harness.adapters.vllm.media:media"}


def _recent() -> bool:
    """Whether the coordinator counts draft groups as 0.32 does, of which the suite `hits` knows."""
    major, minor, *_ = version().split(".")
    return (int(major), int(minor)) >= (0, 32)


def _stops_at_junctions() -> bool:
    """Whether the scheduler ends a step where other requests share more than the hit."""
    made: Any = engine().Request.__init__
    return "shared_prefix_boundary" in made.__code__.co_names


@cache
def profile() -> Profile:
    """Return the profile of the installed release."""
    known = release()
    states = "state" in known.kinds
    newest = Profile(
        engine="vllm",
        version=version(),
        block_sizes=(1, 2, 3, 4, 5, 7, 16, 32, 64, 128, 256),
        no_read=known.no_read,
        evict=has("KVCacheManager.evict_blocks"),
        lookup=True,
        component_suites={**(_HITS if _recent() else {}), **(_MEDIA if hashes_media() else {})},
        provenance=declared(
            "match, allocate, refusal, arrival, publish, release, busy, reset, lookup, states, "
            "held count, cached count, free count, statistics",
            unknown_ids="an id that no request has is not passed on",
            evict="victims are chosen by the adapter, in the order of the free queue",
            kernel_tables="blocks are reported as their pages: the worker's table is not there",
            media_hashes="" if hashes_media() else "content hashes are handed in",
        ),
        narrowed={
            "least_window": "a window of one token needs no block before it, so no hit needs any",
            "layouts": "the kinds of groups that vLLM's models mix, as its coordinators take them",
            "mixed_block_sizes": "all groups get one block size (until 0.31)",
            "mixed_kinds": "chunks are refused with unequal blocks; with states, hits end inside",
            "span_identity": "the key has an identifier and a place; bytes determine the length",
            "most_state_blocks": "a state is one block",
            "junctions_with_drafts": "the drafts' block is not taken off where a step ends",
            "draft_kinds": "the drafts' groups that its models have",
            "compressed_kinds": "its windows of latents have an entry for each token",
            "ranked_kinds": "DCP with hybrid KV cache layouts only supports full-attention, Mamba, "
            "and replicated draft groups",
        },
        unsupported=UNSUPPORTED,
        inspection=InspectionProfile(holders=True, state=True, statistics=True, retained=True),
        policy=PolicyProfile(
            sharing="when_scheduled",
            duplicates="kept",
            reset="idle",
            index="flat",
            evict_keeps_place=True,
        ),
        layers=LayerProfile(
            groups=known.kinds,
            layouts=known.layouts,
            least_window=2,
            window_blocks="reach",
            mixed_block_sizes=_recent(),
            mixed_kinds=("full", "window"),
            compression=latents.RATIOS if latents.driven() else (),
            compressed_kinds=("full",),
            further_layers=latents.driven(),
            context_ranks=(2, 4) if latents.driven() else (),
            ranked_kinds=("full", "state"),
        ),
        recurrent=StateProfile(
            pools=("shared",) if states else (),
            most_blocks=1,
            checkpoints="running",
            decode_intervals=False,
            junctions=states and _stops_at_junctions(),
            junctions_with_drafts=False,
        ),
        speculative=DraftProfile(
            groups=known.draft_groups, kinds=("full", "window"), reach="cached"
        ),
        media=SpanProfile(
            supported=True,
            identity=(*(("kind",) if hashes_media() else ()), "start", "content"),
            embeddings=_recent(),
        ),
    )
    missing = {
        **({} if newest.evict else _NO_EVICT),
        **({} if known.draft_groups else _NO_DRAFTS),
        **({} if known.no_read else _NO_READ),
        **({} if newest.embeddings else _NO_EMBEDDINGS),
        **({} if latents.driven() else _NO_LATENTS),
        **({} if newest.junctions else _NO_JUNCTIONS),
    }
    return replace(newest, unsupported={**UNSUPPORTED, **missing})


_NO_LATENTS = dict.fromkeys(
    ("compression", "context_ranks"), "they are driven from the release that names them so"
)
_NO_JUNCTIONS = {"junctions": "no step ends where a prompt leaves others that are cached"}
_NO_DRAFTS = {"draft_groups": "groups are not marked: with a draft model all give up a block"}
_NO_EVICT = {"evict": "no call takes the identity of given blocks"}
_NO_EMBEDDINGS = {"embeddings": "prompts of embeddings are not driven (until 0.31)"}
_NO_READ = {"no_read": "a request reads whatever is cached"}
