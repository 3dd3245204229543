"""Profiles of the LMDeploy releases. Engine environment only."""

from __future__ import annotations

from functools import cache

from kvproof.harness.adapters.lmdeploy.api import MOVED_CLOCK, release, version
from kvproof.harness.adapters.lmdeploy.releases import CHUNKS, PACKAGE, STATES
from kvproof.harness.contract.profile import (
    ExpertProfile,
    InspectionProfile,
    LayerProfile,
    PolicyProfile,
    Profile,
    SpanProfile,
    StateProfile,
)
from kvproof.harness.contract.provenance import declared

UNSUPPORTED = {
    "compression": "entries of DeepSeek V4 are one more cache of the same blocks, open ones states",
    "sidecars": "an indexer's keys are one more cache of the same blocks",
    "context_ranks": "it has no context-parallel ranks",
    "salts": "requests have no salt: the trie knows adapters only",
    "keys": "nor any other key",
    "embeddings": "no caller of its engine gives embeddings",
    "no_read": "requests are kept from reading only through log-probabilities, from a position on",
    "no_store": "no request is kept from storing",
    "lookup": "match takes blocks for its request: nothing asks without a trace",
    "pins": "no verb holds a cached prefix without a request",
    "events": "the trie sends no events",
    "retained": "tokens of the trie are not counted",
    "duplicates": "what a hit that would end inside a span loses is computed into private blocks",
    "scratch_first": "blocks are evicted until enough are free, those of a second in any order",
    "validates": "placeholder ranges come checked from the preprocessor",
    "in_flight_steps": "one stream orders steps and reuse of blocks",
    "drafts": "rejected drafts are cut off by the sequence strategy of another engine mode",
    "require_experts": "every request of a test case asks for rows, so that no block lacks them",
    "missing_experts": "every request of a test case asks for rows, so that no block lacks them",
    "several_tables": "layers of a model share one table",
    "windows": "sliding windows turn prefix caching off",
    "draft_groups": "a draft model takes the block size of the model it drafts for",
    "partial_blocks": "nodes of the trie are full blocks",
    "encode": "the preprocessor encodes before a request is scheduled",
    "junctions": "checkpoints are saved where steps end, not where prompts part",
    "prompt_saves": "nor at the last block border that a step passes",
    "shared state pool": "states lie in rows of their own",
}
"""Capability -> why it is off, in every release."""

_BEFORE_PACKAGE = {
    "statistics": "a request whose hit is given up before its chunks is not counted (until 0.15)",
    "partial_states": "checkpoints stand at block borders (until 0.16)",
}

_FROM_PACKAGE = {
    "one checkpoint after a block": (
        "the next one, also inside the block that follows, takes its place by design"
    ),
    "second turns with states": (
        "they may hit inside a block of their own, for which the contract has no word; see "
        "suites/engines/lmdeploy/findings/second_turn_shifts_its_table"
    ),
    "blocks after a hit inside a block": (
        "they are cached when the request next grows by a block, else not at all "
        "(suites/engines/lmdeploy/findings/hit_inside_a_block_ends_caching)"
    ),
}

_BEFORE_MOVED_CLOCK = {
    "eviction_order": "access times are whole seconds of a clock that is not moved (until 0.17)",
}

_BEFORE_STATES = {
    "groups": "layers of a model share one table",
    "several_groups": "layers of a model share one table",
    "states": "prefix caching is off for models with recurrent states (until 0.14)",
    "experts": "blocks have no expert rows (until 0.14)",
}

_BEFORE_CHUNKS = {
    "span_chunks": "the chunks of a prompt run without a break (until 0.15): they are one step",
    "decode_intervals": "tokens that are decoded together are one step, as chunks are (until 0.15)",
}


_SUITES = {
    "hits": "kvproof.harness.adapters.lmdeploy.hits:hits",
    "media": "kvproof.harness.adapters.lmdeploy.media:media",
}


@cache
def profile() -> Profile:
    """The installed release's."""
    states, chunked, package = (release() >= first for first in (STATES, CHUNKS, PACKAGE))
    return Profile(
        engine="lmdeploy",
        version=version(),
        block_sizes=(1, 2, 4, 16, 32, 64),
        max_kernel_ratio=4,
        salts=False,
        batch=True,
        component_suites=_SUITES if package else {},
        unsupported={
            **UNSUPPORTED,
            **(_FROM_PACKAGE if package else _BEFORE_PACKAGE),
            **({} if chunked else _BEFORE_CHUNKS),
            **({} if release() >= MOVED_CLOCK else _BEFORE_MOVED_CLOCK),
            **({} if states else _BEFORE_STATES),
        },
        provenance=declared(
            "match, allocate, refusal, publish, release, evict, batch, kernel tables, states, "
            "experts, free count, held count, cached count, statistics, media hashes",
            arrival="the engine's limit on lengths is imitated: Engine refuses before a scheduler",
            unknown_ids="an id that no request has is not passed on",
            reset="everything is evicted: LMDeploy has no such call",
            busy="the adapter asks for an idle engine, which evicting everything needs",
        ),
        narrowed={
            "least_blocks": "a pool of one block was not tried",
            "layouts": "layers of a model share one table, only states have another",
            "most_state_blocks": "a state is one row",
        },
        inspection=InspectionProfile(holders=True, state=True, statistics=package),
        policy=PolicyProfile(
            reset="idle",
            sharing="when_scheduled",
            duplicates="kept",
            eviction_order="lru_by_use" if release() >= MOVED_CLOCK else "undeclared",
        ),
        layers=LayerProfile(
            groups=("full", "state") if states else ("full",),
            layouts=(("full", "state"),) if states else (),
            least_blocks=2,
        ),
        recurrent=StateProfile(
            decode_intervals=chunked,
            prompt_saves="ends",
            pools=("separate",) if states else (),
            partial=package,
        ),
        media=SpanProfile(supported=True, clamp=True, chunks=chunked, budget="longest"),
        routed=ExpertProfile(rows=states),
    )
