"""Checks of entries, of layers that read others' pages, and of scales (Q1, Q3, Q8)."""

from __future__ import annotations

from dataclasses import replace
from math import lcm

from kvproof.reference.planner.chunk import planned_caches, planned_layout
from kvproof.reference.planner.layer_views import byte_range
from kvproof.reference.planner.plan import Plan, View, Worker
from kvproof.reference.planner.planner import make_plan
from kvproof.reference.transfer.chunk_layout import DEFAULT_TOKENS
from kvproof.suites.reference.planner.models import SCALE, Case


def judge_entries(case: Case, plan: Plan) -> None:
    """One place for the tokens of an entry on a rank, and one for each entry of a block (Q1)."""
    for worker in plan.workers:
        for view in worker.views:
            if plan.groups[view.group].kind != "state":
                _one_place(case, plan, worker, view)


def _one_place(case: Case, plan: Plan, worker: Worker, view: View) -> None:
    group, settings = plan.groups[view.group], plan.settings
    places: dict[tuple[int, int], set[tuple[int, int]]] = {}
    seen = [0] * settings.context_parallel
    for token in range(group.block_size):
        rank = token // settings.interleave % settings.context_parallel
        entry = seen[rank] // view.ratio
        seen[rank] += 1
        places.setdefault((rank, entry), set()).add(byte_range(group, worker, view, 1, token))
    wanted = group.block_size // view.ratio // settings.context_parallel
    own = [places.get((0, entry), set()) for entry in range(wanted)]
    case.check(
        "an_entry_has_one_place",
        all(len(each) == 1 for each in places.values())
        and len(places) == wanted * settings.context_parallel
        and len(set.union(*own)) == wanted
        and all(places[rank, entry] == own[entry] for rank, entry in places),
        f"a block of {group.block_size} tokens, {view.ratio} an entry, has (rank, entry) -> bytes "
        f"{places} for {view.part} of {view.layer}",
    )


def judge_readers(case: Case, plan: Plan) -> None:
    """Without its readers a model has the same plan; they see the bytes of their owners (Q3)."""
    name = "readers_own_nothing"
    if not any(group.readers for group in plan.groups):
        return
    owners = tuple(layer for layer in case.model.layers if layer.kind != "shared")
    alone = make_plan(replace(case.model, layers=owners), case.settings)
    pools = [(each.block_bytes, each.used) for each in plan.workers]
    without = [(each.block_bytes, each.used) for each in alone.workers]
    case.check(
        name,
        (pools, plan.num_blocks) == (without, alone.num_blocks),
        f"rows and used bytes {pools}, {plan.num_blocks} blocks; without readers {without}, "
        f"{alone.num_blocks}",
    )
    moved = [each.name for each in planned_caches(plan)]
    case.check(name, moved == [each.name for each in planned_caches(alone)], f"moved are {moved}")
    owned = {(view.layer, view.part): view for view in plan.workers[0].views if not view.owner}
    for view in plan.workers[0].views:
        if view.owner:
            own = replace(owned[view.owner, view.part], layer=view.layer, owner=view.owner)
            case.check(name, view == own, f"{view.layer} sees {view}, its owner {own}")


def judge_scales(case: Case, plan: Plan) -> None:
    """Scales are in the row of their values' block, and in every chunk that has the values (Q8)."""
    for number, worker in enumerate(plan.workers):
        views = {(view.layer, view.part): view for view in worker.views if not view.owner}
        pairs = [
            (views[layer, part.removesuffix(SCALE)], view)
            for (layer, part), view in views.items()
            if part.endswith(SCALE) and plan.groups[view.group].kind != "state"
        ]
        if pairs:
            tokens = lcm(plan.unit, DEFAULT_TOKENS)
            layout = planned_layout(plan, number, tokens=tokens)
            stored = {
                name: group.tokens for group in layout.groups for name in group.geometry.names
            }
            for values, scales in pairs:
                _together(case, plan, worker, values, scales)
                both = [stored.get(f"{each.layer}.{each.part}") for each in (values, scales)]
                case.check(
                    "scales_lie_with_their_values",
                    both[0] is not None and both[0] == both[1],
                    f"a chunk has {both[0]} entries of {values.part} and {both[1]} scales of it",
                )


def _together(case: Case, plan: Plan, worker: Worker, values: View, scales: View) -> None:
    group, row = plan.groups[values.group], worker.block_bytes
    for token in range(group.block_size):
        found = [byte_range(group, worker, view, 1, token) for view in (values, scales)]
        case.check(
            "scales_lie_with_their_values",
            values.group == scales.group
            and all(start // row == (stop - 1) // row == 1 for start, stop in found),
            f"token {token} of block 1 has values and scales at bytes {found}, rows of {row} bytes",
        )
