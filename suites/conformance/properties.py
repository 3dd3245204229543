"""Properties of a cache manager, judged by the suite `cache`: one row each."""

from __future__ import annotations

from collections.abc import Callable

from kvproof.harness.contract.profile import Profile
from kvproof.suites.conformance.group_properties import FULL
from kvproof.suites.conformance.provenance import done_by_adapter
from kvproof.suites.conformance.table import may_be_unequal
from kvproof.suites.framework.property import Property, table

_HIT = ("a hit of one block", "a hit of several blocks")

CORE = table(
    vars(),
    """
every_verb_answers | B4 C6
    every call returns a valid record of the contract: none raises, hangs or returns garbage
    why: one odd request crashes or hangs the engine, and every other client loses its answer
null_block_is_never_used | B1
    the null block is never in a request's table
    why: padding of other requests overwrites a real request's keys, and its answer turns to
    nonsense
written_blocks_have_one_owner | B1 B2
    a block that a request computes into is in no other request's table
    why: two requests overwrite each other's keys, and both get wrong answers
    - a hit of one block
    - cached blocks are evicted to make room
holders_equal_tables_and_pins | B2 | _HIT | needs holders
    reference counts equal the tables and pins that hold a block
    why: a block is reused too early or never again: wrong answers, or a cache that shrinks
release_returns_what_was_held | B2
    finish, cancel and preempt give back exactly what the request held
    why: each finished or cancelled request leaks blocks, until nothing more is admitted
    - a preempted request comes back
release_is_idempotent | B2 C6
    releasing an unknown request changes nothing
    why: a client that disconnects twice frees another request's blocks or crashes the engine
    - an unknown request is released
pins_hold_the_cached_prefix | B2 | by brute force | needs pins
    a pin holds the longest cached prefix, and dropping it gives that back once
    why: a pinned system prompt is computed again all the same, or its memory never comes back
    - a pin is dropped
scratch_goes_before_cached | B3 | needs scratch_first
    no cached block is evicted while a block without identity is free
    intended: PolicyProfile(eviction_order='lru_by_use')
    why: useful prefixes are thrown away although free memory remains, so repeated prompts are
    slow again
    - cached blocks are evicted to make room
least_recent_goes_first | B3 T3 | needs eviction_order
    cached blocks are evicted in the declared order: the least recent first, ends of chains first
    intended: PolicyProfile(eviction_order='undeclared')
    why: popular prompts are evicted before stale ones, and the hit rate drops under load
    - cached blocks are evicted to make room
eviction_takes_idle_cached_blocks | B3 | needs evict
    eviction on request takes the requested number of cached blocks without a holder
    why: a call that should free memory frees too little, or takes it from a running request
refusal_changes_nothing | B4 | by metamorphic pair | needs state
    a refusal leaves references, order, index and statistics as they were
    why: each refused request leaks a little memory or skews the statistics under overload
    - a refusal: no_space
a_hit_block_survives_its_own_admission | B5
    a block that a request hits is not evicted to make room for that request
    why: a full cache hands a request its own prefix as empty space, and the answer is wrong
    - a hit of one block
    - cached blocks are evicted to make room
a_running_step_keeps_its_blocks | B6 | needs in_flight_steps
    blocks that a step in flight may touch are not handed out before it is done
    why: cancelling one request corrupts the answer of the next one that gets its memory
    - several steps are in flight
    - a request is released while its step is in flight
usage_adds_up | B7
    free, held and cached blocks add up to the pool, also while busy
    why: the usage gauge is wrong, so autoscaling and admission act on a false figure
held_blocks_are_those_in_tables | B7 B1
    the number of held blocks equals the blocks in tables and pins
    why: the engine looks busy while idle, or overcommits because it looks idle
cached_blocks_are_those_stored | B7 T2
    the number of cached blocks equals the stored blocks without a holder
    why: the reported cache size is wrong, and leaked blocks go unnoticed until memory runs out
what_fits_is_admitted | B8 B4
    a request is refused only if there are not enough blocks for it
    why: requests wait or are preempted although there is room, so throughput drops for no
    reason
    - a refusal: no_space
    - a request fills the pool
what_can_never_fit_is_refused_at_arrival | B8
    a request larger than the pool is refused for good when it arrives
    why: one oversized prompt waits forever and blocks the whole queue after it
what_can_fit_is_never_refused_for_good | B8
    a request that an empty pool has room for is not refused for good
    why: a client is told that its prompt is too long although the pool only is full
a_refusal_for_good_shows_the_lack | B8
    a refusal for good needs more blocks than it says are available
    why: an operator reads from the message that there is room, and does not enlarge the pool
kernel_tables_address_their_blocks | K2 K3
    the pages in a kernel table are those of the request's blocks, in order
    why: attention reads another request's pages, and the client sees fragments of foreign text
batch_rows_are_the_tables | K3 | needs batch
    the rows of a padded batch have one width and begin with the requests' own pages
    why: a request answers correctly alone and wrongly as soon as it shares a batch
    - a batch with rows of unequal length
padding_is_the_null_block | K3 B1 | needs batch
    padding expands to the null block's own pages
    why: padded batch slots write into live pages, so answers change with the batch size
    - a batch with rows of unequal length
reads_return_own_content | H3 T1 | _HIT | by shadow memory
    every position that a request reads holds what that very request would have computed
    why: an answer continues from keys of other text, fluent but wrong
namespaces_are_separate | H1 H2 | by shadow memory | needs namespaces
    equal tokens under another adapter or salt never share a block
    why: one tenant's cached prompt serves another tenant, or one adapter's keys serve another
    adapter
    - a cached prompt comes back in another namespace
spans_are_separate | H1 | by shadow memory | needs spans
    equal placeholder tokens with other media never share a block the span has begun in
    why: a question about one image is answered from another image of the same size
    - a cached prompt comes back with another span
    - a cached prompt comes back with equal bytes of another kind
    - a cached prompt comes back with the same spans
no_hit_across_epochs | H6 | by shadow memory
    nothing computed before a reset is reused after it
    why: after a weight update old keys answer new requests, and quality falls without an error
    - a reset of a filled cache
    - a prompt of an earlier epoch comes back
reset_does_what_it_says | H6
    a reset is refused only where that is declared, and then changes nothing
    intended: PolicyProfile(reset='idle')
    why: a reset is reported as done, yet stale entries stay, or running requests lose their
    memory
    - a reset while requests hold blocks
malformed_identity_is_refused | H8 | needs validates
    overlapping, out of order, unhashed spans or spans past the prompt are refused
    intended: Profile(validates=False)
    why: a malformed image request poisons the cache or crashes the engine in place of a clear
    error
    - a refusal: invalid
requests_that_may_not_read_hit_nothing | A2 | needs no_read
    a request that may not read hits nothing
    why: a request for prompt scores hits the cache and gets scores for only part of its prompt
    - a cached prefix meets a request that may not read
requests_that_may_not_store_leave_nothing | A2 | by brute force | needs no_store
    blocks of a request that may not store are never reused
    why: a prompt marked private stays in the cache and can be detected by its timing
    - a prompt comes back that was not stored
last_token_is_computed | T1
    the last prompt token is always computed
    why: a fully cached prompt has no logits to sample from: the engine crashes or repeats a
    stale token
    - a hit stops before the last token
hits_are_maximal | T1 H1 | _HIT | by brute force | needs maximal
    the hit is the longest cached prefix: equal prompts share, no hit is lost
    intended: PolicyProfile(maximal=False)
    why: part of a shared prefix is computed again each time, so first tokens come later
hits_come_from_the_cache | T1 T2 | _HIT | by brute force
    a hit reuses only what is complete, stored and still cached
    intended: PolicyProfile(sharing='when_scheduled')
    why: a request reuses blocks that hold nothing valid yet, and its answer begins in garbage
lookup_changes_nothing | T1 | by metamorphic pair | needs lookup
    a lookup changes nothing, not even recency or statistics
    why: a router that only asks about prefixes changes which prefixes are evicted
    - a lookup finds something
lookup_finds_the_longest_prefix | T1 | by brute force | needs lookup
    a lookup finds what an admission would hit
    why: a router reads a wrong prefix length and sends requests to the wrong worker
    - a lookup finds something
equal_blocks_are_shared | T2 | needs duplicates
    a block that exists already is shared instead of kept twice
    intended: PolicyProfile(duplicates='kept')
    why: many equal system prompts fill the cache with copies, and fewer requests fit
    - a completed step shares an equal block
nothing_is_read_before_it_is_written | T2 C4 | _HIT | by shadow memory
    no request reads a slot before the step that writes it
    why: a second equal prompt that arrives at once reads unwritten memory and answers nonsense
no_block_outlives_its_parent | T3 | needs index
    no cached block remains whose predecessor is gone
    intended: PolicyProfile(index='flat')
    why: memory is spent on cached blocks that no later prompt can ever hit
    - cached blocks are evicted to make room
table_covers_its_tokens | T7 K2 Q4
    a table has room for every token that its request has computed
    why: a long answer writes past its own memory, into another request or out of bounds
    - a hit in blocks of several ranks
a_step_computes_what_was_asked_for | C1
    a step computes as many tokens as it was asked for, others only where a state is kept
    why: a long prompt takes more than its share of a step, and every other answer stalls
table_never_shifts | T7
    an extension keeps the table and goes on in the partial last block
    why: after some turns a request attends to its tokens in the wrong order and loses the
    thread
    - a partial last block is extended
    - an extension crosses a block border
hits_are_counted_once | V1 | needs statistics
    hits and queries are counted once per request, at admission, in tokens
    why: dashboards show a hit rate over or under the truth, and bills for cached tokens are
    wrong
    - a hit of one block
    - a preempted request comes back
    - a preempted request resumes on its own blocks
only_what_is_cached_is_kept | T4 | needs retained
    tokens and rows stay in memory as long as they are cached, records as long as their requests run
    why: the server's host memory grows with every request until the process is killed
    - cached blocks are evicted to make room
    - blocks stay cached when no request is left
events_replay_to_the_index | V4 | needs events
    replaying the cache events gives exactly the stored blocks
    why: a router that follows the events believes in prefixes that are gone and misroutes
    requests
    - cached blocks are evicted to make room
""",
)

PROPERTIES = (*CORE, *FULL)

BY_NAME = {prop.name: prop for prop in PROPERTIES}

_DECLARED: dict[str, Callable[[Profile], bool]] = {
    "eviction_order": lambda profile: profile.eviction_order != "undeclared",
    "scratch_first": lambda profile: profile.eviction_order not in ("undeclared", "lru_by_use"),
    "order_in_all_groups": lambda profile: profile.eviction_order == "lru_in_all_groups",
    "duplicates": lambda profile: profile.duplicates == "shared",
    "index": lambda profile: profile.index == "tree",
    "namespaces": lambda profile: profile.adapters or profile.salts,
    "several_groups": lambda profile: len(profile.groups) > 1,
    "several_tables": lambda profile: (
        len(profile.groups) > 1
        and (
            not profile.layouts
            or "shared" in profile.state_pools
            or any(len(kinds) - kinds.count("state") > 1 for kinds in profile.layouts)
        )
    ),
    "partial_blocks": lambda profile: profile.partial_blocks or profile.partial_states,
    "span_chunks": lambda profile: profile.span_clamp and profile.chunks,
    "missing_experts": lambda profile: profile.experts and profile.in_flight_steps > 0,
    "windows": lambda profile: bool({"window", "chunk"} & set(profile.groups)),
    "returned_windows": lambda profile: (
        bool({"window", "chunk"} & set(profile.groups)) and profile.behind_windows == "cached"
    ),
    "decode_intervals": lambda profile: (
        profile.decode_intervals and bool(profile.state_pools) and "state" in profile.groups
    ),
    "state_copies": lambda profile: (
        profile.checkpoints == "copied" and bool(profile.state_pools) and "state" in profile.groups
    ),
    "declared_places": lambda profile: (
        profile.prompt_saves == "borders" and "state" in profile.groups
    ),
    "states": lambda profile: bool(profile.state_pools) and "state" in profile.groups,
}


def supported(prop: Property, profile: Profile) -> bool:
    """Whether a target's profile claims the capability of a property, and the engine has it."""
    if done_by_adapter(prop.name, profile):
        return False
    if not prop.needs or not profile.blocks:
        return profile.blocks
    declared = _DECLARED.get(prop.needs)
    return bool(declared(profile) if declared else getattr(profile, prop.needs))


_POSSIBLE: dict[str, Callable[[Profile], bool]] = {
    "a partial last block is extended": lambda profile: max(profile.block_sizes, default=0) > 1,
    "a request fills the pool": lambda profile: profile.least_blocks == 1,
    "unequal counts of drafts are in flight": lambda profile: profile.in_flight_steps > 1,
    "a hit beside unequal windows of drafts": may_be_unequal,
    "a cached prompt comes back with equal bytes of another kind": lambda profile: (
        "kind" in profile.span_identity
    ),
    "a hit is limited by a window": lambda profile: "window" in profile.groups,
    "a window hit with holes": lambda profile: "window" in profile.groups,
    "a hit is limited by a chunk": lambda profile: "chunk" in profile.groups,
    "a hit in blocks of unequal sizes": lambda profile: profile.mixed_block_sizes,
    "a window moves on while a later step is in flight": lambda profile: (
        profile.in_flight_steps > 1
    ),
    "a match ends inside an entry": lambda profile: (
        profile.partial_blocks or profile.partial_states
    ),
    "a rejected draft completes an entry": lambda profile: profile.drafts,
    "a hit in blocks of several layers": lambda profile: profile.further_layers,
    "a hit in blocks of several ranks": lambda profile: bool(profile.context_ranks),
    "a rejected draft leaves states behind": lambda profile: profile.drafts,
    "a state is backed up to the host": lambda profile: "state" in profile.host_groups,
    "a hit goes on from a state of the host": lambda profile: "state" in profile.host_groups,
}
"""Situation -> the claim without which it cannot occur on a target."""


def on(prop: Property, profile: Profile) -> Property:
    """Return a property with the situations that can occur on a target."""
    possible = tuple(
        name for name in prop.situations if name not in _POSSIBLE or _POSSIBLE[name](profile)
    )
    return prop._replace(situations=possible)


def why_unsupported(prop: Property, profile: Profile) -> str:
    """Return the profile's reason for not supporting a property."""
    if not profile.blocks:
        return profile.unsupported.get("blocks", "the target manages no blocks")
    if why := done_by_adapter(prop.name, profile):
        return why
    return profile.unsupported.get(prop.needs, f"the profile declares no {prop.needs!r}")
