"""Rules of every plan; each yields the violations it finds (P4, P6, P7)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise

import msgspec

from kvproof.reference.core.cache_config import ConfigError
from kvproof.reference.planner.layer_spec import PlanError
from kvproof.reference.planner.plan import MOST_BYTES, SCHEMA_VERSION, Plan, View, Worker


def every_layer_is_in_exactly_one_group(plan: Plan) -> Iterator[str]:
    """Layers that own something, and those that read it, are each listed once (P4)."""
    listed = Counter(name for group in plan.groups for name in (*group.layers, *group.readers))
    for name, times in listed.items():
        if times > 1:
            yield f"layer {name!r} is in {times} groups"


def every_layer_is_on_exactly_one_worker(plan: Plan) -> Iterator[str]:
    """Views of a layer stand on one pipeline stage, in the group that lists it (P6, P7)."""
    places: dict[str, set[int]] = {}
    for number, worker in enumerate(plan.workers):
        for view in worker.views:
            places.setdefault(view.layer, set()).add(number)
            group = plan.groups[view.group]
            if view.layer not in (group.readers if view.owner else group.layers):
                yield f"layer {view.layer!r} has bytes in group {view.group}, which lacks it"
    for group in plan.groups:
        for name in (*group.layers, *group.readers):
            if len(places.get(name, ())) != 1:
                yield f"layer {name!r} is on {len(places.get(name, ()))} workers"


def no_two_owners_overlap(plan: Plan) -> Iterator[str]:
    """Inside a row the layers of a group have places of their own (P7)."""
    for number, worker in enumerate(plan.workers):
        for index in range(len(plan.groups)):
            for first, second in pairwise(_places(worker, index)):
                if second.offset < first.offset + _length(plan, first):
                    yield (
                        f"worker {number}, group {index}: {second.part!r} of {second.layer!r} at "
                        f"byte {second.offset} overlaps {first.part!r} of {first.layer!r}"
                    )


def every_place_is_inside_its_row(plan: Plan) -> Iterator[str]:
    """Kernel rows cut a row exactly, and the last layer ends before the next begins (P7)."""
    for number, worker in enumerate(plan.workers):
        for index, group in enumerate(plan.groups):
            if worker.block_bytes % group.config.kernel_ratio:
                yield f"worker {number}, group {index}: kernel rows do not divide the row"
            room = _room(plan, worker, index)
            for view in _places(worker, index):
                if view.offset + _length(plan, view) > room:
                    yield (
                        f"worker {number}, group {index}: {view.part!r} of {view.layer!r} ends at "
                        f"byte {view.offset + _length(plan, view)} of {room}"
                    )


def readers_see_the_bytes_of_their_owner(plan: Plan) -> Iterator[str]:
    """A layer without an allocation is a view of another layer (P1)."""
    for worker in plan.workers:
        owned = {
            (v.layer, v.part, v.group, v.offset, v.nbytes) for v in worker.views if not v.owner
        }
        for view in worker.views:
            place = (view.owner, view.part, view.group, view.offset, view.nbytes)
            if view.owner and place not in owned:
                yield f"layer {view.layer!r} does not see the bytes of {view.owner!r}"


def every_byte_used_is_accounted_for(plan: Plan) -> Iterator[str]:
    """The bytes of a group are the sum of its layers (P2)."""
    for number, worker in enumerate(plan.workers):
        if len(worker.used) != len(plan.groups):
            yield f"worker {number} has {len(worker.used)} groups, not {len(plan.groups)}"
            continue
        for index, group in enumerate(plan.groups):
            size, own = group.block_size, _places(worker, index)
            filled = sum(view.nbytes * group.entries(size, view.ratio) for view in own)
            if filled != worker.used[index]:
                yield f"worker {number}, group {index}: {worker.used[index]} bytes, not {filled}"


def pools_fit_their_memory(plan: Plan) -> Iterator[str]:
    """Blocks, the null block included, and state rows, row 0 included (P2)."""
    for number, worker in enumerate(plan.workers):
        needed = plan.num_blocks * worker.block_bytes
        needed += plan.settings.state_rows * worker.state_row_bytes
        if needed > worker.memory:
            yield f"worker {number} needs {needed} bytes and has {worker.memory}"


def block_sizes_keep_to_the_bound(plan: Plan) -> Iterator[str]:
    """Hits align to the unit, so it is bounded (P5)."""
    if plan.unit > plan.settings.unit_bound:
        yield f"the unit {plan.unit} is more than {plan.settings.unit_bound}"


RULES: tuple[Callable[[Plan], Iterator[str]], ...] = (
    every_layer_is_in_exactly_one_group,
    every_byte_used_is_accounted_for,
    every_layer_is_on_exactly_one_worker,
    no_two_owners_overlap,
    every_place_is_inside_its_row,
    readers_see_the_bytes_of_their_owner,
    pools_fit_their_memory,
    block_sizes_keep_to_the_bound,
)


def _places(worker: Worker, group: int) -> list[View]:
    owned = (view for view in worker.views if view.group == group and not view.owner)
    return sorted(owned, key=lambda view: view.offset)


def _length(plan: Plan, view: View) -> int:
    group = plan.groups[view.group]
    return view.nbytes * group.entries(group.config.kernel_size, view.ratio)


def _room(plan: Plan, worker: Worker, group: int) -> int:
    planned = plan.groups[group]
    if planned.kind != "state":
        return worker.block_bytes // planned.config.kernel_ratio
    return worker.state_row_bytes or worker.block_bytes * planned.state_blocks


def _largest(value: object) -> int:
    """Return the largest whole number in builtin containers, whatever its sign."""
    if isinstance(value, dict):
        return max(map(_largest, value.values()), default=0)
    if isinstance(value, list | tuple):
        return max(map(_largest, value), default=0)
    return abs(value) if isinstance(value, int) else 0


def read_plan(data: bytes) -> Plan:
    """Read a plan back from JSON. Raises PlanError if it is none, or contradicts itself (P9)."""
    try:
        plan = msgspec.json.decode(data, type=Plan)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PlanError(f"this is no plan: {error}", "make one with kvproof plan") from error
    if plan.schema != SCHEMA_VERSION:
        raise PlanError(f"the plan has schema {plan.schema}, not {SCHEMA_VERSION}", "plan again")
    if _largest(msgspec.to_builtins(plan)) > MOST_BYTES:
        raise PlanError("the plan contradicts itself: a number is over 2**60 bytes", "plan again")
    try:
        plan.cache_config()
        broken = next((text for rule in RULES for text in rule(plan)), "")
    except (ConfigError, IndexError, ArithmeticError) as error:
        broken = str(error)
    if broken:
        raise PlanError(f"the plan contradicts itself: {broken}", "plan again")
    return plan
