"""Known failures of vLLM's cache manager; records and pages of the findings have the causes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvproof.harness.contract import operations as ops
from kvproof.harness.contract.target import (
    Group,
    Inspection,
    Namespace,
    Refused,
    Request,
    Scheduled,
    Span,
)
from kvproof.harness.oracle.group_layout import Layout
from kvproof.harness.oracle.longest_hit import HitOracle
from kvproof.harness.oracle.shadow_memory import Mismatch
from kvproof.harness.oracle.state import OracleState, RequestState
from kvproof.suites.framework.failed import Failed


def chunk_across_blocks(found: Failed) -> bool:
    """A hit ends in a chunk that begins inside a block, and its first blocks are null or gone."""
    if found.has("as_drafts"):
        return _chunk_across_blocks_of_the_index(found)
    state, layout = found.state, found.state.layout
    if found.has("live"):
        hit, why, group, block = (
            found.fact("hit", int), found.fact("why", str),
            found.fact("group", int), found.fact("block", int),
        )  # fmt: skip
    else:  # a look-up
        request, hit = found.fact("request", Request), found.fact("found", int)
        if hit <= found.fact("expected", int):
            return False
        resident = state.hits.resident(state.prints(request))
        reason = state.hits.invalid(resident, hit, len(request.tokens) - 1, request.spans)
        why, group, block = reason or ("", 0, 0)
    layers = layout.groups[group]
    begin = layout.visible(group, hit) if why == "chunk" else 0
    simple = sum(each.kind == "full" for each in layout.groups) >= 1 and len(layout.groups) == 2
    return (
        why == "chunk"
        and simple
        and layers.size % layers.block_size != 0
        and begin <= (block + 1) * layers.block_size - 1 < hit
    )


def _chunk_across_blocks_of_the_index(found: Failed) -> bool:
    groups, hit = found.fact("groups", tuple), found.fact("hit", int)
    odd = any(kind == "chunk" and size % block for kind, block, size, _ in groups)
    full = any(kind == "full" for kind, *_ in groups)
    looks = {(kind, block, size) for kind, block, size, _ in groups}
    return odd and full and len(looks) == 2 and hit > 0


def windows_count_as_drafts(found: Failed) -> bool:
    """A group of the model that looks like one of its draft model's gives up a unit, as that."""
    if found.has("as_drafts"):
        return found.fact("as_drafts", int) <= found.fact("hit", int) < found.fact("best", int)
    live, hit = found.fact("live", RequestState), found.fact("hit", int)
    state = found.state
    twins = _with_twins(state)
    if twins == state.layout.groups:
        return False
    layout = Layout(twins, state.layout.separate)
    oracle = HitOracle(state.model, layout, state.config, state.profile, state.partial)
    least = oracle.search(
        oracle.resident(live.prints), len(live.request.tokens) - 1, live.request.spans, listed=True
    )
    return least <= hit < found.fact("expected", int)


def draft_windows_are_proven_apart(found: Failed) -> bool:
    """Of unequal groups of a draft model, only the last one looked up has the unit after a hit."""
    if not found.has("one_draft"):
        return False
    drafts = {(kind, size) for kind, _, size, draft in found.fact("groups", tuple) if draft}
    hit = found.fact("hit", int)
    return len(drafts) > 1 and found.fact("best", int) < hit <= found.fact("one_draft", int)


def decoded_behind_embeddings(found: Failed) -> bool:
    """Of a prompt of embeddings, a block with tokens that a request like it decoded is not hit."""
    live, hit = found.fact("live", RequestState), found.fact("hit", int)
    rows = live.request.embedded
    decoded = any(verb == "extend" and call.get("tokens") for verb, call in found.calls)
    return decoded and 0 < rows < hit + found.state.layout.unit


def _with_twins(state: OracleState) -> tuple[Group, ...]:
    drafts = [replace(each, draft=False) for each in state.layout.groups if each.draft]
    return tuple(
        replace(each, draft=True) if each in drafts else each for each in state.layout.groups
    )


def waiting_counts_as_hit(found: Failed) -> bool:
    """Matching counts in the statistics: a request that waits is counted whenever it is tried."""
    operation, answer = found.state.history[-1]
    if not (isinstance(operation, ops.Admit) and isinstance(answer, Refused)):
        return False
    if found.has("counted"):
        counted: tuple[int, ...] = found.fact("counted", tuple)
        total: list[int] = found.fact("total", list)
        first = 2 if operation.request.resumed else 0
        more = [had - wanted for had, wanted in zip(counted, total, strict=True)]
        queries, hits = more[first : first + 2]
        return 0 <= hits < queries == len(operation.request.tokens) == sum(more) - hits
    before, after = found.fact("before", Inspection), found.fact("found", Inspection)
    return before.usage == after.usage and before.holders == after.holders


def _count_as_the_engine(found: Failed) -> None:
    if found.has("counted"):
        found.fact("total", list)[:] = found.fact("counted", tuple)


ADOPT = {"waiting_counts_as_hit": _count_as_the_engine}
"""Known failure -> correction of the model, before the history goes on."""


def resumed_hits_count_as_hits(found: Failed) -> bool:
    """The blocks that a preempted request finds again count as a hit like any other."""
    resumed = [each for each in _requests(found.state) if each.resumed]
    return bool(resumed)


def uncached_queue_behind_cached(found: Failed) -> bool:
    """Blocks without a hash go to the end of the free queue, after cached ones."""
    if found.has("victims"):
        return 0 < len(found.fact("victims", tuple)) <= len(found.fact("fresh", tuple))
    return found.has("dropped", "taken", "free") and len(found.fact("dropped", tuple)) > 0


def namespaces_share_names(found: Failed) -> bool:
    """A salt called like an adapter is that adapter, and an adapter is its name alone."""
    if found.has("mismatch"):
        writer = found.fact("mismatch", Mismatch).writer
        own = found.fact("live", RequestState).request.namespace
        return writer is not None and _alike(writer.request.namespace, own)
    if found.has("kept"):
        return found.fact("kept", int) < found.fact("least", int) and _twins(found.state)
    request, hit = _hit(found)
    return any(
        _alike(other.namespace, request.namespace) and other.tokens[:hit] == request.tokens[:hit]
        for other in _requests(found.state)
    )


def images_have_no_place(found: Failed) -> bool:
    """The key names an image but not its place in the block."""
    if found.has("mismatch"):
        writer = found.fact("mismatch", Mismatch).writer
        own = found.fact("live", RequestState).request
        return writer is not None and _moved(writer.request.spans, own.spans)
    request, hit = _hit(found)
    return any(
        _moved(other.spans, request.spans) and other.tokens[:hit] == request.tokens[:hit]
        for other in _requests(found.state)
    )


def decoded_blocks_lose_images(found: Failed) -> bool:
    """A block that decoded tokens fill is keyed with other images than it holds."""
    live, unit = found.fact("live", RequestState), found.state.layout.unit
    lost = range(found.fact("hit", int) // unit * unit, found.fact("expected", int))
    return any(
        span.start < lost.stop and span.start + span.length >= lost.start
        for span in live.request.spans
    )


def draft_groups_give_up_more(found: Failed) -> bool:
    """With a draft model a hit loses more than one unit, a refused request all that it hits."""
    answer = found.state.history[-1][1]
    if isinstance(answer, Refused):
        return found.state.layout.drafts and answer.needed > found.fact("needed", int)
    hit = found.fact("hit" if found.has("hit") else "found", int)
    return found.state.layout.drafts and hit < found.fact("expected", int)


def states_lengthen_draft_hits(found: Failed) -> bool:
    """With a draft model a recurrent group lengthens the hit past the match of the others."""
    return found.state.layout.drafts and bool(found.state.layout.states)


def passed_blocks_have_a_hash(found: Failed) -> bool:
    """A block that a step passes has the hash of its end, though its state is of fewer tokens."""
    more = found.fact("cached", int) > len(found.fact("idle", frozenset))
    return more and bool(found.state.layout.states)


def first_chunk_admits(found: Failed) -> bool:
    """A request is admitted if its first chunk fits, also where the rest never will."""
    operation, answer = found.state.history[-1]
    return (
        isinstance(operation, ops.Admit)
        and isinstance(answer, Scheduled)
        and answer.stop < len(operation.request.tokens)
    )


def chunks_keep_their_last_block(found: Failed) -> bool:
    """The last block of a chunk that is over stays with its request."""
    return any(group.kind == "chunk" for group in found.state.layout.groups)


def _hit(found: Failed) -> tuple[Request, int]:
    if found.has("live"):
        return found.fact("live", RequestState).request, found.fact("hit", int)
    return found.fact("request", Request), found.fact("found", int)


def _requests(state: OracleState) -> Iterator[Request]:
    """Every request of the history, with its decoded tokens if it still runs."""
    yield from (live.request for live in state.live.values())
    for operation, _ in state.history:
        if isinstance(operation, ops.Admit):
            yield operation.request


def _twins(state: OracleState) -> bool:
    """Whether two namespaces of the history have one name and begin with equal tokens."""
    requests = list(_requests(state))
    return any(
        _alike(one.namespace, other.namespace) and one.tokens[:1] == other.tokens[:1]
        for one in requests
        for other in requests
    )


def _alike(one: Namespace, other: Namespace) -> bool:
    return one != other and _names(one) == _names(other)


def _names(space: Namespace) -> list[str]:
    return [name for name in (space.adapter, space.salt) if name is not None]


def _moved(one: tuple[Span, ...], other: tuple[Span, ...]) -> bool:
    contents = {span.content: span.start for span in one}
    return any(contents.get(span.content, span.start) != span.start for span in other)
