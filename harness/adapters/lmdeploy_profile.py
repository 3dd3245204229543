"""What each release of LMDeploy claims to the suites.

Imported in the engine's environment only.
"""

from __future__ import annotations

from functools import cache

from kvproof.harness.adapters.lmdeploy_api import release, version
from kvproof.harness.adapters.lmdeploy_releases import CHUNKS, PACKAGE, STATES
from kvproof.harness.target import Profile

UNSUPPORTED = {
    "salts": "requests have no salt: the trie knows adapters only",
    "no_read": "requests are kept from reading only through log-probabilities, from a position on",
    "no_store": "no request is kept from storing",
    "lookup": "match takes blocks for its request: nothing asks without a trace",
    "pins": "no verb holds a cached prefix without a request",
    "statistics": "requests that come back after an eviction are left out, not counted apart",
    "events": "the trie sends no events",
    "duplicates": "what a hit that would end inside a span loses is computed into private blocks",
    "eviction_order": "the access time of a block is kept in whole seconds, ties go by address",
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
    "shared state pool": "states lie in rows of their own",
}
"""Capability -> why it is off, in every release."""

_FROM_PACKAGE = {
    "checkpoints inside a block": (
        "such a state is saved with a frozen copy of its block (from 0.16); the contract has "
        "checkpoints at block borders"
    ),
}

_BEFORE_STATES = {
    "groups": "layers of a model share one table",
    "several_groups": "layers of a model share one table",
    "states": "prefix caching is off for models with recurrent states (until 0.14)",
    "experts": "blocks have no expert rows (until 0.14)",
}

_BEFORE_CHUNKS = {
    "span_chunks": "nobody runs between the chunks of a prompt (until 0.15): they are one step",
    "decode_intervals": "tokens that are decoded together are one step, as chunks are (until 0.15)",
}


@cache
def profile() -> Profile:
    """The installed release's."""
    states, chunked = release() >= STATES, release() >= CHUNKS
    return Profile(
        engine="lmdeploy",
        version=version(),
        block_sizes=(1, 2, 4, 16, 32, 64),
        max_kernel_ratio=4,
        salts=False,
        spans=True,
        span_clamp=True,
        chunks=chunked,
        span_budget="longest",
        decode_intervals=chunked,
        batch=True,
        holders=True,
        state=True,
        reset="idle",
        sharing="when_scheduled",
        groups=("full", "state") if states else ("full",),
        layouts=(("full", "state"),) if states else (),
        state_pools=("separate",) if states else (),
        duplicates="kept",
        experts=states,
        eviction_order="undeclared",
        unsupported={
            **UNSUPPORTED,
            **(_FROM_PACKAGE if release() >= PACKAGE else {}),
            **({} if chunked else _BEFORE_CHUNKS),
            **({} if states else _BEFORE_STATES),
        },
    )
