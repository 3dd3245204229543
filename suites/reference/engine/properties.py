"""Properties of a whole engine: the suite `system`."""

from __future__ import annotations

from kvproof.harness.oracle.violation import METAMORPHIC
from kvproof.suites.framework.property import table

DIRECT = "direct computation"
"""The symbolic model computed from the tokens, without memory."""
ALONE = METAMORPHIC
"""The same request alone in a fresh engine without cache, in one chunk."""

HIT = "a request hits"
INSIDE = "a hit ends inside a block"
WINDOW_HIT = "a hit whose beginning no window sees"
COMPRESSED = "a hit on entries of several tokens"
SIDECAR = "a hit on blocks with a sidecar"
SHARED_OUT = "a hit on entries of several ranks"
SCALED = "a hit on entries with scales"
RESTORED = "a state is restored"
JUNCTION = "a checkpoint at a junction is restored"
DECODED = "a checkpoint taken while decoding is restored"
MEDIA_HIT = "a hit over a whole span"
ENCODED = "an encoder runs"
CHUNKED = "a prompt in several chunks"
OWN_BLOCKS = "a preempted request resumes on its own blocks"
PREEMPTED = "a request is preempted for an older one"
FORCED = "a request is preempted from outside"
IN_FLIGHT = "a request is preempted with a step in flight"
ACCEPTED = "a draft is accepted"
REJECTED = "a draft is rejected"
BORDER = "a rejected draft across a block border"
MIXED = "a step with a prompt and an answer"
REFUSED = "a prompt is refused"
NEVER_AT_A_BORDER = "a prompt never fits before its last unit"
NEVER_WITH_A_SPAN = "a prompt never fits because of a span"
WAITED = "a request waits for room"
CROWDED = "more requests run than a step has tokens"
TURNS = "more requests are ready than a step has tokens"
OLDER = "a request waits that is older than all that run"
ROLLED = "more requests than the rolling hit rate looks at"
NO_HIT = "a retry without the hit"
SHARED_STEP = "a hit leaves tokens of a step to the next in line"
CANCELLED = {
    status: f"a {status} request is cancelled" for status in ("waiting", "running", "preempted")
}
CANCELLED_IN_FLIGHT = "a request is cancelled with a step in flight"
RESET = "a reset while requests run"
MOVED = "a running request is moved out"
MOVED_IN = "a moved request goes on"
NO_ROOM = "a moved request finds no room"
MOVED_OVER = "a request moves over a reset"
SCALED_IN = "a moved request goes on with its scales"
PINNED = "a prompt is pinned"
SEVERAL = "several steps are in flight"
SLEPT = "requests run when the engine falls asleep with its content"
DROPPED = "requests run when the engine falls asleep without content"
SCALED_SLEPT = "a request goes on with scales that slept"
DRAINED = "everything is answered"
CACHED_ROWS = "expert rows come from the cache"
MISSING = "expert rows are missing"

FROM_HOST = "a hit comes back from host memory"
FROM_DISK = "a hit comes back from the disk"
STATE_BACK = "a recurrent state comes back"
LOCAL_BACK = "blocks of a window or chunk come back"
SIDECAR_BACK = "blocks come back with their sidecar"
SCALED_BACK = "blocks come back with their scales"
MEDIA_BACK = "blocks with media come back"
GROUPS_BACK = "some groups come back to blocks that others have kept"
OLD_EPOCH = "a prompt from before a reset comes back, and a tier has it"
OTHER_SPACE = "a prompt comes back in another namespace, and a tier has it"
LATE = "objects come late"
FAILED = "no object comes"
UNEQUAL_TIERS = "objects of one unit come back from several tiers"
RESUMED_BACK = "a preempted request comes back with loaded objects"
SPAN_AFTER = "the first step after a load grows to the end of a span"
PARTLY = "some objects of a fetch do not come"
DAMAGED = "a file is damaged"
ABANDONED = "a request does not wait any longer"

PROPERTIES = table(
    vars(),
    """
cached_equals_uncached | T1 B5 H7 X1 M1 S1 Q1 Q2 Q4 Q8 | by direct computation
    a request that hits gives the same answer as alone without a cache
    why: the same prompt gets another answer when it was asked before
    - HIT INSIDE WINDOW_HIT COMPRESSED SIDECAR SHARED_OUT SCALED
    - RESTORED JUNCTION DECODED MEDIA_HIT RESET MOVED_OVER
chunked_equals_whole | C1 M3 S4 X4 K4 | CHUNKED MIXED SEVERAL ENCODED | by direct computation
    a prompt computed in chunks gives the same answer as in one
    why: long prompts are answered worse when the server is busy and cuts them in chunks
preempted_equals_undisturbed | C3 B6 | OWN_BLOCKS PREEMPTED FORCED IN_FLIGHT | by direct computation
    a preempted request gives the same answer as undisturbed
    why: under memory pressure some answers break off or change topic in the middle
drafted_equals_undrafted | X5 | ACCEPTED REJECTED BORDER | by direct computation
    a request with draft tokens gives the same answer as without
    why: switching on speculative decoding changes the model's answers
drafts_are_those_of_whole_draft_layers | X3 | HIT ACCEPTED REJECTED | by direct computation
    the guesses are those of draft layers that have read every token themselves
    why: speculative decoding slows down after every hit because its guesses are poor
moved_requests_are_whole | C5 K4 Q4 Q8 | MOVED MOVED_IN NO_ROOM SCALED_IN | by direct computation
    a request that was moved goes on as if it had stayed; one without room changes nothing
    why: a request handed to another worker loses its context or is lost with it
sleep_keeps_or_drops_content_as_it_says | Q6 Q8 | SLEPT DROPPED SCALED_SLEPT | by direct computation
    a request that slept gives the same answer as undisturbed, and with kept content computes no
    token again
    why: after a pause for another model, open conversations continue with garbage
a_sleeping_engine_computes_nothing | Q6 | SLEPT DROPPED
    between sleep and waking up no step computes, and no request changes its place
    why: a request during sleep crashes the GPU process or writes to memory that is gone
expert_rows_equal_a_fresh_run | R2 R1 | CACHED_ROWS REJECTED OWN_BLOCKS | by direct computation
    the expert rows of all tokens but the last are those of a fresh computation
    why: reinforcement learning on cached rollouts drifts, as its routing is not the real one
the_engine_reports_missing_expert_rows | R2 R3 | MISSING CACHED_ROWS
    rows are missing only inside a hit, and never if the hit requires them
    why: a rollout silently lacks routing that its trainer had required
what_comes_back_is_what_was_computed | H6 H1 X1 S9 R2 B6 Q2 Q8 | by direct computation
    a hit with loaded objects gives the same answer as the request alone in a large pool
    why: a conversation resumed from host memory or disk answers differently from a fresh one
    - FROM_HOST FROM_DISK STATE_BACK LOCAL_BACK SIDECAR_BACK SCALED_BACK
    - MEDIA_BACK GROUPS_BACK OLD_EPOCH OTHER_SPACE
late_or_failed_loads_cost_no_correctness | C8 G7 | by direct computation
    a request whose objects come late, in part or never gives the same answer as alone
    why: a slow or failing disk makes answers wrong where it should only make them late
    - LATE FAILED PARTLY DAMAGED ABANDONED
waiting_for_objects_changes_nothing | C8 B4 | LATE PARTLY
    as long as the objects of a request are not all here, index, pool and counts stay
    why: requests that wait for the disk block memory, and the others are starved
loaded_objects_are_hit_by_their_request | B4 B5 V1 M3
    objects come back only for a request that is then admitted, which hits all of them
    why: the engine pays for a load and then computes the same prefix again
    - FROM_HOST GROUPS_BACK STATE_BACK UNEQUAL_TIERS RESUMED_BACK SPAN_AFTER
answers_have_the_length_asked_for | C1 | DRAINED
    an answer is done exactly when it has the requested number of tokens
    why: answers end early or run past their limit, and clients pay for the surplus
something_runs_while_work_is_left | C3 B8 C2 | WAITED PREEMPTED NO_HIT
    a step computes something as long as a request is left and no pin is in the way
    why: the server hangs with requests in its queue and an idle GPU
waits_are_bounded | C1 | WAITED PREEMPTED CROWDED DRAINED
    a request is done within 2 (d + 1) steps for each token of its own and of older requests
    why: an unlucky request waits without end while newer ones are served
running_requests_take_turns | C1 | TURNS
    the oldest request computes in every step, and no other overtakes one that has waited longer
    why: some streams freeze for seconds while others race ahead
steps_in_flight_are_counted_once | C3 B6 | SEVERAL FORCED
    a running request knows how many of its steps have not ended
    why: memory is freed under a running step, or never freed after a preemption
rolling_hit_rates_are_of_the_last_requests | V1 | ROLLED RESET OWN_BLOCKS
    the rolling hit rate is that of the last new requests since a reset, without resumed ones
    why: the hit rate on the dashboard lags or is inflated by preempted requests
token_budget_is_used_while_requests_wait | C1 | SHARED_STEP WAITED
    a step leaves tokens of its budget only if no waiting request could run
    why: the GPU runs half empty batches while users wait in the queue
decisions_repeat | C7 | PREEMPTED HIT SEVERAL | by metamorphic pair
    two engines with the same requests decide the same, with the same tables
    why: a failure seen once cannot be reproduced, and distributed workers drift apart
cancelling_is_safe | C6 | CANCELLED CANCELLED_IN_FLIGHT
    a cancelled request holds nothing and is unknown, and cancelling again changes nothing
    why: users who close the page leave memory in use, or the server stops on the second cancel
refused_admissions_leave_no_trace | B4 C2 T1 | WAITED NO_HIT
    blocks, index, rows and statistics are the same after a refusal as before
    why: a busy server slowly loses capacity with each attempt to start a waiting request
requests_that_never_fit_are_refused_at_arrival | B8 M3 | by brute force
    a request is refused when it arrives, with the numbers, or it is answered in the end
    why: a client with too long a prompt waits without end in place of an error
    - REFUSED DRAINED NEVER_AT_A_BORDER NEVER_WITH_A_SPAN
options_reach_their_component | O1 | CROWDED MIXED SEVERAL ACCEPTED HIT
    no step, no request and no hit exceeds the options of the engine
    why: a limit set on the command line has no effect, and the engine runs out of memory
the_pool_is_empty_in_the_end | B1 B2 B7 | DRAINED CANCELLED_IN_FLIGHT RESET
    when every request is gone and the cache is evicted, every block and row is free
    why: capacity shrinks day by day until the server has to be restarted
""",
)
