"""Checks of a new plan or of its refusal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

from kvproof.reference.core.attention_groups import Layout
from kvproof.reference.planner import planner
from kvproof.reference.planner.capacity import (
    Capacity,
    capacity,
    longest_length,
    need,
    request_bytes,
)
from kvproof.reference.planner.layer_spec import ModelSpec, PlanError
from kvproof.reference.planner.plan import Plan, PlanSettings
from kvproof.reference.planner.rules import read_plan
from kvproof.suites.reference.planner import properties as seen
from kvproof.suites.reference.planner.arithmetic import (
    equal_splits,
    fits,
    has_states,
    most_held,
    seen_as,
)
from kvproof.suites.reference.planner.models import SCALE, Case
from kvproof.suites.reference.planner.questions import ranges


def situations(model: ModelSpec, plan: Plan) -> Iterator[str]:
    """Return the situations of one plan."""
    yield from (situation for situation, so in _of_groups(model, plan).items() if so)
    yield from (situation for situation, so in _of_settings(plan).items() if so)


def _of_groups(model: ModelSpec, plan: Plan) -> dict[str, bool]:
    attention = [group for group in plan.groups if group.kind != "state"]
    states = [group for group in plan.groups if group.kind == "state"]
    rules = [(group.kind, group.size) for group in attention]
    flight, length = plan.settings.max_batch_tokens, plan.settings.max_len
    return {
        seen.SPLIT: len(set(rules)) < len(rules),
        seen.UNEQUAL_BLOCKS: len({group.block_size for group in attention}) > 1,
        seen.PADDED: need(plan, length).padding > 0,
        seen.MIXED_LAYERS: any(
            len({layer.parts for layer in model.layers if layer.name in group.layers}) > 1
            for group in attention
        ),
        seen.BOUNDED: any(
            group.kind == "window" and group.size + flight + plan.unit < length
            for group in attention
        ),
        seen.ODD_CHUNK: any(g.kind == "chunk" and g.size % plan.unit for g in attention),
        seen.NO_BOUND: longest_length(plan, plan.usable) is None,
        seen.LONG_STATE: any(group.state_blocks > 1 for group in states),
        seen.SEPARATE: plan.separate_states,
        seen.DRAFT_STATES: bool(states) and plan.settings.drafts > 0,
        seen.READER: any(group.readers for group in plan.groups),
        seen.COMPRESSED: any(layer.ratio > 1 for layer in model.layers),
        seen.UNEQUAL_ENTRIES: any(
            len({layer.ratio for layer in model.layers if layer.name in group.layers}) > 1
            for group in attention
        ),
        seen.SCALES: any(p.name.endswith(SCALE) for layer in model.layers for p in layer.parts),
    }


def _of_settings(plan: Plan) -> dict[str, bool]:
    settings = plan.settings
    return {
        seen.STAGES: len(plan.workers) > 1,
        seen.ABSENT: any(
            not any(view.group == index for view in worker.views)
            for worker in plan.workers
            for index in range(len(plan.groups))
        ),
        seen.UNEQUAL_MEMORY: len(set(settings.memory)) > 1,
        seen.KERNEL_BLOCKS: settings.kernel_size < settings.block_size,
        seen.FIXED: settings.num_blocks > 0,
        seen.RANKS: settings.context_parallel > 1,
    }


def judge_refusal(case: Case, error: PlanError) -> None:
    """Check that the sizes in the error fit."""
    name = "too_little_memory_names_what_fits"
    if not error.needed:
        return
    case.coverage.event(seen.SHORTAGE)
    case.coverage.event(seen.NOTHING_FITS, not error.longest)
    lack = error.needed - error.available
    more = replace(case.settings, memory=tuple(m + lack for m in case.settings.memory))
    case.check(name, lack > 0 and _fits(case.model, more), f"{error}: {lack} bytes more do not do")
    if len(case.settings.memory) == 1:
        less = replace(case.settings, memory=(error.needed - 1,))
        case.check(name, not _fits(case.model, less), f"{error}: a byte less does too")
    if error.longest:
        short = replace(case.settings, max_len=error.longest)
        case.check(name, _fits(case.model, short), f"{error}: the length that fits does not")
    long = replace(case.settings, max_len=error.longest + 1)
    case.check(name, not _fits(case.model, long), f"{error}: a token more than that fits too")
    case.check(name, bool(error.hint), f"{error}: no word of what to change")


def judge_refused_fallback(case: Case, error: PlanError) -> None:
    """Check that a fallback that does not fit states whether windows would."""
    if case.settings.hybrid_groups or not error.longest:
        return
    hybrid = _fits(case.model, replace(case.settings, hybrid_groups=True))
    case.check(
        "full_attention_fallback_reports_its_cost",
        error.hint.startswith("leave hybrid_groups on") == hybrid,
        f"windows fit: {hybrid}, but the hint is {error.hint!r}",
    )


def _fits(model: ModelSpec, settings: PlanSettings) -> bool:
    try:
        planner.make_plan(model, settings)
    except PlanError:
        return False
    return True


def judge_groups(case: Case, plan: Plan) -> None:
    """Check which layers share a group, its blocks, and JSON."""
    name = "every_layer_is_in_exactly_one_group"
    specs = {layer.name: layer for layer in case.model.layers}
    listed = [layer for group in plan.groups for layer in (*group.layers, *group.readers)]
    case.check(name, sorted(listed) == sorted(specs), f"the groups list {listed}")
    for group in plan.groups:
        rules = {seen_as(specs[layer], case.settings) for layer in group.layers}
        same = rules == {(group.kind, group.size)}
        order = [specs[layer].index for layer in group.layers]
        case.check(name, same and order == sorted(order), f"{group} mixes {rules}")
        owners = {specs[layer].owner for layer in group.readers}
        case.check(name, owners <= set(group.layers), f"{group} lacks owners of its readers")
    kernel = case.settings.kernel_block_size or case.settings.block_size
    unit = Layout(plan.cache_config().groups).unit
    case.check(
        "block_size_lcm_is_bounded",
        unit == plan.unit <= case.settings.unit_bound
        and all(g.block_size % kernel == 0 for g in plan.groups)
        and {g.kernel_block_size for g in plan.groups if g.kind != "state"} <= {kernel},
        f"blocks of {[g.block_size for g in plan.groups]} tokens, kernel blocks of {kernel}",
    )


def judge_json(case: Case, plan: Plan) -> None:
    """Check that the plan comes back from its JSON."""
    try:
        back: object = read_plan(plan.to_json())
    except PlanError as error:
        back = error
    case.check("a_plan_survives_json", back == plan, f"{back} came back")


def judge_layout(case: Case, plan: Plan) -> None:
    attention = [index for index, group in enumerate(plan.groups) if group.kind != "state"]
    for worker in range(len(plan.workers)):
        for group, other in zip(attention, attention[1:] + attention[:1], strict=True):
            found = [
                place
                for index, block in ((group, 1), (other, 2))
                for token in range(plan.groups[index].block_size)
                for place in ranges(plan, worker, index, block, token)
            ]
            ordered = sorted(found)
            case.check(
                "live_owners_never_alias",
                all(first[1] <= second[0] for first, second in pairwise(ordered)),
                f"tokens of group {group}, block 1, and group {other}, block 2 occupy {ordered}",
            )


def judge_workers(case: Case, plan: Plan) -> None:
    """Each worker has a row for every block, and exactly its own layers in the groups."""
    name = "workers_agree"
    depth, count = case.model.depth, len(plan.workers)
    rows = 1 + case.settings.max_requests + case.settings.prefix_cache_state_budget
    for stage, worker in enumerate(plan.workers):
        needed = plan.num_blocks * worker.block_bytes + rows * worker.state_row_bytes
        case.check(name, needed <= worker.memory, f"worker {stage} needs {needed} bytes")
        here = {layer.name for layer in case.model.layers if layer.index * count // depth == stage}
        for index, group in enumerate(plan.groups):
            found = {view.layer for view in worker.views if view.group == index}
            owed = here & {*group.layers, *group.readers}
            case.check(name, found == owed, f"worker {stage}, group {index} has {found}")
    asked = case.settings.num_blocks
    case.check(name, asked in (0, plan.num_blocks), f"{plan.num_blocks} blocks of {asked}")


def judge_sizes(case: Case, plan: Plan, stated: Capacity) -> None:
    """Check the sizes that the plan states as fitting."""
    length = case.settings.max_len
    exact = tuple(most_held(plan, group, length) for group in plan.groups)
    name = "requests_hold_the_blocks_planned"
    case.check(name, plan.blocks(length) == exact, f"{length} tokens hold {exact}")
    name = "the_returned_length_fits_and_one_more_does_not"
    if stated.longest is None:
        case.check(name, fits(plan, 10**6, plan.num_blocks - 1), "a million tokens do not fit")
    else:
        case.check(name, fits(plan, stated.longest, plan.num_blocks - 1), f"{stated} does not fit")
        more = fits(plan, stated.longest + 1, plan.num_blocks - 1)
        case.check(name, not more, f"a token more than {stated.longest} fits too")
    _judge_capacity(case, plan, stated)


def _judge_capacity(case: Case, plan: Plan, stated: Capacity) -> None:
    name, length = "stated_capacity_is_reached", case.settings.max_len
    each = sum(most_held(plan, group, length) for group in plan.groups)
    most = (plan.num_blocks - 1) // each if each else 10**9
    if has_states(plan) and case.settings.state_pool == "separate":
        rows = case.settings.max_requests + case.settings.prefix_cache_state_budget
        most = min(most, rows // (1 + case.settings.drafts))
    case.check(name, stated.requests == most >= 1, f"{stated}, but {most} run at once")
    rest = stated.tokens - stated.requests * length
    left = plan.num_blocks - 1 - stated.requests * each
    case.check(name, not rest or fits(plan, rest, left), f"{stated}: {rest} do not fit")


def judge_choice(case: Case, plan: Plan) -> None:
    """No equal split is better; a further group must save its cost."""
    if len(plan.workers) > 1 or not any(group.kind != "state" for group in plan.groups):
        return
    length = case.settings.max_len
    share = Fraction(sum(plan.blocks(length)), plan.num_blocks - 1)
    count = sum(group.kind != "state" for group in plan.groups)
    for equal in equal_splits(case.model, case.settings):
        allowed = equal.share * (1 + Fraction(max(0, equal.groups - count), 500))
        case.check(
            "no_equal_split_is_better",
            share <= allowed * (1 + Fraction(1, 10**9)),
            f"{count} groups take {float(share):.6f} of the blocks, but {equal.groups} groups "
            f"of {equal.size} layers {float(equal.share):.6f}",
        )


def judge_fallback(case: Case, plan: Plan) -> None:
    """Check that the fallback has no windows, and states its cost."""
    several = replace(case.settings, hybrid_groups=True)
    if case.settings.hybrid_groups or not _fits(case.model, several):
        return
    hybrid = planner.make_plan(case.model, several)
    length = case.settings.max_len
    more = request_bytes(plan, length) - request_bytes(hybrid, length)
    case.coverage.event(seen.PROMOTED, more > 0)
    stated = f"{capacity(plan).requests:,} run at once instead of {capacity(hybrid).requests:,}"
    case.check(
        "full_attention_fallback_reports_its_cost",
        {group.kind for group in plan.groups} <= {"full", "state"}
        and any(note.endswith(stated) for note in plan.notes) == (more != 0),
        f"{more} bytes more, {stated}, but the notes are {plan.notes}",
    )
