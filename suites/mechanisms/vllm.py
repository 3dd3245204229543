"""vLLM's known failures in its current release; the pages of the findings have the causes."""

from __future__ import annotations

from dataclasses import replace

from kvproof.harness.contract.target import Group, Request
from kvproof.harness.oracle.group_layout import Layout
from kvproof.harness.oracle.longest_hit import HitOracle
from kvproof.harness.oracle.state import OracleState, RequestState
from kvproof.suites.mechanisms.failed import Failed


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
