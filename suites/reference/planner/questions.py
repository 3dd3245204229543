"""Queries to a plan: requests in steps, bytes of tokens, states in blocks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from kvproof.reference.core.context_ranks import ContextRanks, moves
from kvproof.reference.planner import layer_views as plan_views
from kvproof.reference.planner.capacity import longest_length, need, useful_bytes
from kvproof.reference.planner.plan import Plan, Worker
from kvproof.suites.reference.planner import properties as seen
from kvproof.suites.reference.planner.arithmetic import (
    bytes_of,
    fits,
    held,
    most_held,
    on_first_rank,
)
from kvproof.suites.reference.planner.models import Case


def ask_request(case: Case, plan: Plan, length: int, steps: Sequence[int]) -> object:
    needed = need(plan, length)
    exact = tuple(most_held(plan, group, length) for group in plan.groups)
    name = "requests_hold_the_blocks_planned"
    case.check(name, needed.blocks == exact, f"{length} tokens hold {exact}, not {needed}")
    start = taken = 0
    while start < length:
        stop = min(length, start + min(steps[taken % len(steps)], plan.settings.max_batch_tokens))
        for index, group in enumerate(plan.groups):
            if group.kind != "state":
                now = held(group, plan.unit, start, stop)
                case.check(name, now <= needed.blocks[index], f"[{start}, {stop}) holds {now}")
        start, taken = stop, taken + 1
    _judge_bytes(case, plan, length)
    fit = longest_length(plan, plan.usable)
    room = fits(plan, length, plan.num_blocks - 1)
    case.check(
        "the_returned_length_fits_and_one_more_does_not",
        room == (fit is None or length <= fit),
        f"{length} tokens fit: {room}, but the longest is {fit}",
    )
    return needed


def _judge_bytes(case: Case, plan: Plan, length: int) -> None:
    needed = need(plan, length)
    specs = {layer.name: layer for layer in case.model.layers}
    useful = 0
    for group in plan.groups:
        tokens = _useful_tokens(plan, group.kind, group.size, length)
        useful += bytes_of([specs[layer] for layer in group.layers], tokens)
    counted = sum(
        useful_bytes(plan, worker, index, length)
        for worker in plan.workers
        for index in range(len(plan.groups))
    )
    rows = sum(worker.state_row_bytes for worker in plan.workers) * needed.state_rows
    held_bytes = sum(worker.block_bytes * sum(needed.blocks) for worker in plan.workers)
    case.check(
        "every_byte_is_accounted_for",
        counted == useful
        and min(needed.padding, needed.rounding) >= 0
        and needed.bytes == held_bytes + rows == useful + needed.padding + needed.rounding + rows,
        f"{length} tokens need {useful} bytes, but {needed}",
    )


def _useful_tokens(plan: Plan, kind: str, size: int, length: int) -> int:
    if kind == "state":
        return 1 + plan.settings.drafts if plan.settings.state_pool == "shared" else 0
    seen = length if kind == "full" else min(length, size - 1 + plan.settings.max_batch_tokens)
    return on_first_rank(plan.settings, seen)


def ask_bytes(case: Case, plan: Plan, worker: int, first: list[int], second: list[int]) -> object:
    """Compare the bytes of two tokens, (group, block, token), on one worker."""
    places = [_place(plan, place) for place in (first, second)]
    (one, block, token), (other, second_block, second_token) = places
    if one != other and block == second_block:
        second_block = block + 1 if block + 1 < plan.num_blocks else block - 1
    same = (one, block, token) == (other, second_block, second_token)
    found = ranges(plan, worker, one, block, token)
    if not same:
        found += ranges(plan, worker, other, second_block, second_token)
    ordered = sorted(found)
    end = plan.num_blocks * plan.workers[worker % len(plan.workers)].block_bytes
    apart = all(a[1] <= b[0] for a, b in pairwise(ordered))
    inside = not found or (ordered[0][0] >= 0 and ordered[-1][1] <= end)
    case.check("live_owners_never_alias", apart and inside, f"{places} occupy {ordered} of {end}")
    return ordered


def _place(plan: Plan, place: Sequence[int]) -> tuple[int, int, int]:
    attention = [i for i, group in enumerate(plan.groups) if group.kind != "state"]
    if not attention:
        return (-1, 1, 0)
    index = attention[place[0] % len(attention)]
    block = 1 + place[1] % (plan.num_blocks - 1)
    return index, block, place[2] % plan.groups[index].block_size


def ranges(plan: Plan, worker: int, index: int, block: int, token: int) -> list[tuple[int, int]]:
    """Return the bytes of the entries that end with a token on the first rank, of every part."""
    at, settings = plan.workers[worker % len(plan.workers)], plan.settings
    if token // settings.interleave % settings.context_parallel:
        return []
    return [
        plan_views.byte_range(plan.groups[index], at, view, block, token)
        for view in at.views
        if view.group == index and not view.owner and (token + 1) % view.ratio == 0
    ]


def ask_ranks(case: Case, _: Plan, length: int, sizes: Sequence[Sequence[int]]) -> object:
    """Place the tokens of a request on ranks, and move them to other ranks."""
    old, new = (ContextRanks(*size) for size in sizes)
    before, after = placed(old, length), placed(new, length)
    name = "each_token_lies_on_one_rank"
    for ranks, places in ((old, before), (new, after)):
        own = [(ranks.owner(at), ranks.slot(at)) for at in range(length)]
        case.check(name, own == places, f"tokens lie at {own} (rank, slot), not at {places}")
        held = [ranks.held(length, rank) for rank in range(ranks.count)]
        counts = [sum(rank == each for rank, _ in places) for each in range(ranks.count)]
        case.check(name, held == counts, f"ranks hold {held} of {length} tokens, not {counts}")
    moved = [(each.position, each.source, each.target) for each in moves(length, old, new)]
    wanted = list(zip(range(length), before, after, strict=True))
    case.check(
        "a_change_of_ranks_moves_each_token_once",
        sorted(moved) == wanted,
        f"from {old} to {new} tokens (position, from, to) are moved {moved}",
    )
    case.coverage.event(seen.MORE_RANKS, old.count < new.count)
    case.coverage.event(seen.FEWER_RANKS, old.count > new.count)
    case.coverage.event(seen.OTHER_TURNS, old.interleave != new.interleave)
    case.coverage.event(seen.UNEVEN_RANKS, length % old.round)
    return moved


def placed(ranks: ContextRanks, length: int) -> list[tuple[int, int]]:
    """Deal tokens out to ranks in turns; returns rank and slot of each."""
    dealt = [0] * ranks.count
    found = []
    for token in range(length):
        rank = token // ranks.interleave % ranks.count
        found.append((rank, dealt[rank]))
        dealt[rank] += 1
    return found


def ask_state(case: Case, plan: Plan, worker: int, blocks: Sequence[int]) -> object:
    """Lay a state into blocks with any ids."""
    at = plan.workers[worker % len(plan.workers)]
    found = [i for i, group in enumerate(plan.groups) if group.kind == "state"]
    if not found or case.settings.state_pool == "separate":
        return "no state in blocks"
    group, count = plan.groups[found[0]], plan.groups[found[0]].state_blocks
    ids = [1 + (block % (plan.num_blocks - count)) for block in blocks[:1]]
    ids = [ids[0] + i for i in range(count)][:: -1 if blocks[-1] % 2 else 1]
    views = [view for view in at.views if view.group == found[0]]
    ranges = [r for view in views for r in plan_views.state_ranges(at, view, ids)]
    ordered, row = sorted(ranges), at.block_bytes
    case.coverage.event(seen.STATE_SHARED_ROW, len(ranges) > len(views))
    name = "states_fill_their_blocks"
    whole = sum(stop - start for start, stop in ranges) == sum(v.nbytes for v in views)
    apart = all(a[1] <= b[0] for a, b in pairwise(ordered))
    inside = all(
        start // row == (stop - 1) // row and start // row in ids for start, stop in ranges
    )
    case.check(name, whole and apart and inside, f"blocks {ids} hold {ordered}")
    case.check("live_owners_never_alias", apart, f"parts of a state occupy {ordered}")
    sizes = [_state_bytes(w, found[0]) / w.block_bytes for w in plan.workers
             if w.block_bytes]  # fmt: skip
    case.check(name, count - 1 < max(sizes) <= count, f"{sizes} blocks of {count} for {group}")
    return ids


def _state_bytes(worker: Worker, group: int) -> int:
    ends = [view.offset + -(-view.nbytes // 16) * 16 for view in worker.views
            if view.group == group]  # fmt: skip
    return max(ends, default=0)
