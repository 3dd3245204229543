"""A plan, judged once when it is made, then asked about requests, bytes and states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from kvproof.reference import plan_views, planner
from kvproof.reference.groups import Layout
from kvproof.reference.layer_spec import ModelSpec, PlanError
from kvproof.reference.plan import Plan, PlanSettings
from kvproof.reference.plan_rules import read_plan
from kvproof.reference.plan_sizes import Capacity, capacity, longest_length, need, useful_bytes
from kvproof.suites.part import Config, Recorder
from kvproof.suites.plan import properties as seen
from kvproof.suites.plan.arithmetic import (
    bytes_of,
    equal_splits,
    fits,
    has_states,
    held,
    most_held,
)
from kvproof.suites.plan.models import model_of, settings_of
from kvproof.suites.plan.situations import situations


class World:
    """Makes a plan of the configuration; without one only the refusal is judged."""

    def __init__(self, config: Config, recorder: Recorder) -> None:
        self.model = model_of(config)
        self.settings = settings_of(config)
        self._recorder = recorder
        self.plan: Plan | None = None
        try:
            self.plan = planner.make_plan(self.model, self.settings)
        except PlanError as error:
            self._judge_refusal(error)
            return
        for situation in situations(self.model, self.plan):
            recorder.saw(situation)
        self._judge_groups(self.plan)
        self._judge_workers(self.plan)
        self._judge_sizes(self.plan, capacity(self.plan))
        self._judge_choice(self.plan)
        self._judge_fallback(self.plan)

    def apply(self, verb: str, **arguments: Any) -> object:
        """Ask the plan something; ignored where there is none."""
        if self.plan is None:
            return "no plan"
        asked: Any = {"request": self._request, "bytes": self._bytes, "state": self._state}[verb]
        return asked(self.plan, **arguments)

    def _check(self, name: str, ok: object, sentence: str) -> None:
        self._recorder.check(name, ok, lambda: f"{sentence}; planned for {self.settings}")

    # --- once ---

    def _judge_refusal(self, error: PlanError) -> None:
        """Check that what the error says fits, fits."""
        name = "too_little_memory_says_what_fits"
        if not error.needed:
            return
        self._recorder.saw(seen.SHORTAGE)
        self._recorder.saw(seen.NOTHING_FITS, not error.longest)
        lack = error.needed - error.available
        more = replace(self.settings, memory=tuple(m + lack for m in self.settings.memory))
        self._check(name, lack > 0 and self._fits(more), f"{error}: {lack} bytes more do not do")
        if error.longest:
            short = replace(self.settings, max_len=error.longest)
            self._check(name, self._fits(short), f"{error}: the length that fits does not")
        long = replace(self.settings, max_len=error.longest + 1)
        self._check(name, not self._fits(long), f"{error}: a token more than that fits too")
        self._check(name, bool(error.hint), f"{error}: no word of what to change")

    def _fits(self, settings: PlanSettings) -> bool:
        try:
            planner.make_plan(self.model, settings)
        except PlanError:
            return False
        return True

    def _judge_groups(self, plan: Plan) -> None:
        name = "every_layer_is_in_exactly_one_group"
        specs = {layer.name: layer for layer in self.model.layers}
        listed = [layer for group in plan.groups for layer in (*group.layers, *group.readers)]
        self._check(name, sorted(listed) == sorted(specs), f"the groups list {listed}")
        for group in plan.groups:
            whole = group.kind == "full" and not self.settings.hybrid_groups
            rules = {(specs[layer].kind, specs[layer].size) for layer in group.layers}
            attention = all(kind != "state" for kind, _ in rules)
            same = attention if whole else rules == {(group.kind, group.size)}
            order = [specs[layer].index for layer in group.layers]
            self._check(name, same and order == sorted(order), f"{group} mixes {rules}")
            owners = {specs[layer].owner for layer in group.readers}
            self._check(name, owners <= set(group.layers), f"{group} lacks owners of its readers")
        kernel = self.settings.kernel_block_size or self.settings.block_size
        unit = Layout(plan.cache_config().groups).unit
        self._check(
            "the_unit_keeps_to_its_bound",
            unit == plan.unit <= self.settings.unit_bound
            and all(g.block_size % kernel == 0 for g in plan.groups)
            and {g.kernel_block_size for g in plan.groups if g.kind != "state"} <= {kernel},
            f"blocks of {[g.block_size for g in plan.groups]} tokens, kernel blocks of {kernel}",
        )
        self._check("a_plan_survives_json", read_plan(plan.to_json()) == plan, "JSON changes it")

    def _judge_workers(self, plan: Plan) -> None:
        """Every worker has a row for every block, and exactly its own layers in the groups."""
        name = "workers_agree"
        depth, count = self.model.depth, len(plan.workers)
        rows = 1 + self.settings.max_requests + self.settings.prefix_cache_state_budget
        for stage, worker in enumerate(plan.workers):
            needed = plan.num_blocks * worker.block_bytes + rows * worker.state_row_bytes
            self._check(name, needed <= worker.memory, f"worker {stage} needs {needed} bytes")
            here = {layer.name for layer in self.model.layers if layer.index * count // depth == stage}
            for index, group in enumerate(plan.groups):
                found = {view.layer for view in worker.views if view.group == index}
                owed = here & {*group.layers, *group.readers}
                self._check(name, found == owed, f"worker {stage}, group {index} has {found}")
        asked = self.settings.num_blocks
        self._check(name, asked in (0, plan.num_blocks), f"{plan.num_blocks} blocks of {asked}")

    def _judge_sizes(self, plan: Plan, stated: Capacity) -> None:
        name = "the_returned_length_fits_and_one_more_does_not"
        if stated.longest is None:
            self._check(name, fits(plan, 10**6, plan.usable), "a million tokens do not fit")
        else:
            self._check(name, fits(plan, stated.longest, plan.usable), f"{stated} does not fit")
            more = fits(plan, stated.longest + 1, plan.usable)
            self._check(name, not more, f"a token more than {stated.longest} fits too")
        self._judge_capacity(plan, stated)

    def _judge_capacity(self, plan: Plan, stated: Capacity) -> None:
        name, length = "stated_capacity_is_reached", self.settings.max_len
        each = sum(most_held(plan, group, length) for group in plan.groups)
        most = plan.usable // each if each else 10**9
        if has_states(plan) and self.settings.state_pool == "separate":
            rows = self.settings.max_requests + self.settings.prefix_cache_state_budget
            most = min(most, rows // (1 + self.settings.drafts))
        self._check(name, stated.requests == most >= 1, f"{stated}, but {most} run at once")
        rest = stated.tokens - stated.requests * length
        left = plan.usable - stated.requests * each
        self._check(name, not rest or fits(plan, rest, left), f"{stated}: {rest} do not fit")

    def _judge_choice(self, plan: Plan) -> None:
        """No equal split is better, a group more having to save what it costs."""
        if len(plan.workers) > 1 or not any(group.kind != "state" for group in plan.groups):
            return
        length = self.settings.max_len
        share = Fraction(sum(plan.blocks(length)), plan.usable)
        count = sum(group.kind != "state" for group in plan.groups)
        for equal in equal_splits(self.model, self.settings):
            allowed = equal.share * (1 + Fraction(max(0, equal.groups - count), 500))
            self._check(
                "no_equal_split_is_better",
                share <= allowed * (1 + Fraction(1, 10**9)),
                f"{count} groups take {float(share):.6f} of the blocks, but {equal.groups} groups "
                f"of {equal.size} layers {float(equal.share):.6f}",
            )

    def _judge_fallback(self, plan: Plan) -> None:
        if self.settings.hybrid_groups or len(plan.workers) > 1:
            return
        self._recorder.saw(seen.PROMOTED, any(x.kind == "window" for x in self.model.layers))
        hybrid = planner.make_plan(self.model, replace(self.settings, hybrid_groups=True))
        requests = capacity(hybrid).requests_exact * (1 + 0.002 * len(hybrid.groups))
        self._check(
            "keeping_windows_whole_costs_memory",
            {group.kind for group in plan.groups} <= {"full", "state"}
            and capacity(plan).requests_exact <= requests,
            f"{capacity(plan)} in one group, {capacity(hybrid)} in several",
        )

    # --- questions ---

    def _request(self, plan: Plan, length: int, steps: Sequence[int]) -> object:
        """Compute a request of `length` tokens in steps of the sizes given, again and again."""
        needed = need(plan, length)
        exact = tuple(most_held(plan, group, length) for group in plan.groups)
        name = "requests_hold_the_blocks_planned"
        self._check(name, needed.blocks == exact, f"{length} tokens hold {exact}, not {needed}")
        start = taken = 0
        while start < length:
            stop = min(length, start + min(steps[taken % len(steps)], plan.settings.max_batch_tokens))
            for index, group in enumerate(plan.groups):
                if group.kind != "state":
                    now = held(group, plan.unit, start, stop)
                    self._check(name, now <= needed.blocks[index], f"[{start}, {stop}) holds {now}")
            start, taken = stop, taken + 1
        self._judge_bytes(plan, length)
        fit = longest_length(plan, plan.usable)
        room = fits(plan, length, plan.usable)
        self._check(
            "the_returned_length_fits_and_one_more_does_not",
            room == (fit is None or length <= fit),
            f"{length} tokens fit: {room}, but the longest is {fit}",
        )
        return needed

    def _judge_bytes(self, plan: Plan, length: int) -> None:
        needed = need(plan, length)
        specs = {layer.name: layer for layer in self.model.layers}
        useful = 0
        for group in plan.groups:
            nbytes = bytes_of([specs[layer] for layer in group.layers])
            useful += nbytes * self._useful_tokens(plan, group.kind, group.size, length)
        counted = sum(
            useful_bytes(plan, worker, index, length)
            for worker in plan.workers
            for index in range(len(plan.groups))
        )
        rows = sum(worker.state_row_bytes for worker in plan.workers) * needed.state_rows
        held_bytes = sum(worker.block_bytes * sum(needed.blocks) for worker in plan.workers)
        self._check(
            "every_byte_is_accounted_for",
            counted == useful
            and min(needed.padding, needed.rounding) >= 0
            and needed.bytes == held_bytes + rows == useful + needed.padding + needed.rounding + rows,
            f"{length} tokens need {useful} bytes, but {needed}",
        )

    def _useful_tokens(self, plan: Plan, kind: str, size: int, length: int) -> int:
        if kind == "state":
            return 1 + plan.settings.drafts if plan.settings.state_pool == "shared" else 0
        if kind == "full":
            return length
        return min(length, size - 1 + plan.settings.max_batch_tokens)

    def _bytes(self, plan: Plan, worker: int, first: list[int], second: list[int]) -> object:
        """Compare what two tokens, (group, block, token), occupy on one worker."""
        places = [self._place(plan, worker, place) for place in (first, second)]
        (one, block, token), (other, second_block, second_token) = places
        if one != other and block == second_block:
            second_block = block + 1 if block + 1 < plan.num_blocks else block - 1
        same = (one, block, token) == (other, second_block, second_token)
        found = self._ranges(plan, worker, one, block, token)
        if not same:
            found += self._ranges(plan, worker, other, second_block, second_token)
        ordered = sorted(found)
        end = plan.num_blocks * plan.workers[worker % len(plan.workers)].block_bytes
        apart = all(a[1] <= b[0] for a, b in zip(ordered, ordered[1:], strict=False))
        inside = not found or (ordered[0][0] >= 0 and ordered[-1][1] <= end)
        self._check(
            "live_owners_never_alias", apart and inside, f"{places} occupy {ordered} of {end}"
        )
        return ordered

    def _place(self, plan: Plan, worker: int, place: Sequence[int]) -> tuple[int, int, int]:
        attention = [i for i, group in enumerate(plan.groups) if group.kind != "state"]
        if not attention:
            return (-1, 1, 0)
        index = attention[place[0] % len(attention)]
        block = 1 + place[1] % (plan.num_blocks - 1)
        return index, block, place[2] % plan.groups[index].block_size

    def _ranges(
        self, plan: Plan, worker: int, index: int, block: int, token: int
    ) -> list[tuple[int, int]]:
        at = plan.workers[worker % len(plan.workers)]
        return [
            plan_views.byte_range(plan.groups[index], at, view, block, token)
            for view in at.views
            if view.group == index and not view.owner
        ]

    def _state(self, plan: Plan, worker: int, blocks: Sequence[int]) -> object:
        """Lay a state into blocks with any ids."""
        at = plan.workers[worker % len(plan.workers)]
        found = [i for i, group in enumerate(plan.groups) if group.kind == "state"]
        if not found or self.settings.state_pool == "separate":
            return "no state in blocks"
        group, count = plan.groups[found[0]], plan.groups[found[0]].state_blocks
        ids = [1 + (block % (plan.num_blocks - count)) for block in blocks[:1]]
        ids = [ids[0] + i for i in range(count)][:: -1 if blocks[-1] % 2 else 1]
        views = [view for view in at.views if view.group == found[0]]
        ranges = [r for view in views for r in plan_views.state_ranges(at, view, ids)]
        ordered, row = sorted(ranges), at.block_bytes
        self._recorder.saw(seen.STATE_SHARED_ROW, len(ranges) > len(views))
        name = "states_fill_their_blocks"
        whole = sum(stop - start for start, stop in ranges) == sum(v.nbytes for v in views)
        apart = all(a[1] <= b[0] for a, b in zip(ordered, ordered[1:], strict=False))
        inside = all(start // row == (stop - 1) // row and start // row in ids for start, stop in ranges)
        self._check(name, whole and apart and inside, f"blocks {ids} hold {ordered}")
        self._check("live_owners_never_alias", apart, f"parts of a state occupy {ordered}")
        sizes = [self._state_bytes(plan, w, found[0]) / w.block_bytes for w in plan.workers
                 if w.block_bytes]  # fmt: skip
        self._check(name, count - 1 < max(sizes) <= count, f"{sizes} blocks of {count} for {group}")
        return ids

    def _state_bytes(self, plan: Plan, worker: Any, group: int) -> int:
        ends = [view.offset + -(-view.nbytes // 16) * 16 for view in worker.views
                if view.group == group]  # fmt: skip
        return max(ends, default=0)


def mixed(model: ModelSpec, names: Sequence[str]) -> bool:
    """Tell whether layers cache unlike parts."""
    return len({layer.parts for layer in model.layers if layer.name in names}) > 1
