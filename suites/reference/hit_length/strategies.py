"""Suite `hits`: one operation, the hit of a request in the groups of the configuration."""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm
from typing import NamedTuple, TypeAlias

from hypothesis import strategies as st

from kvproof.reference.core import fixpoint as hit_length
from kvproof.reference.core.fixpoint import Floor, Reduction
from kvproof.reference.core.identity import Span
from kvproof.suites.framework.component_suite import ComponentSuite, Config, Draw
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.hit_length.cases import (
    Case,
    Choose,
    Group,
    choose_case,
    choose_groups,
)
from kvproof.suites.reference.hit_length.oracle import is_valid, longest_by_trying
from kvproof.suites.reference.hit_length.properties import (
    DRAFTS,
    HOLE,
    LIMITS,
    MIXED,
    ODD_CHUNK,
    PROPERTIES,
    TINY_WINDOW,
    TWO_ROUNDS,
)
from kvproof.suites.reference.hit_length.remote import offered

Spans: TypeAlias = Sequence[tuple[int, int]]


class Limit(NamedTuple):
    """A floor and what it stands for."""

    name: str
    floor: Floor


class HitLengthMachine:
    """Asks the reference for a hit and the oracle for the truth."""

    def __init__(self, config: Config, coverage: Coverage) -> None:
        self.groups = tuple(Group(*group) for group in config["groups"])
        self._coverage = coverage

    def apply(
        self, verb: str, *, limit: int, resident: Sequence[Sequence[int]], spans: Spans
    ) -> object:
        """Return the hit of one case."""
        assert verb == "hit", verb
        there = tuple(map(tuple, resident))
        case = Case(self.groups, limit, there, tuple((start, stop) for start, stop in spans))
        limits = self._limits(case)
        hit = self._find(case.limit, limits)
        steps = list(hit_length.reductions(case.limit, _floors(limits)))
        self._judge_drafts(case, hit, limits)
        self._judge_order(case, hit, limits)
        self._judge(case, hit)
        self._judge_losses(case, hit, steps)
        for situation in _situations(case, hit, limits, steps):
            self._coverage.event(situation)
        return hit

    def _find(self, limit: int, limits: Sequence[Limit]) -> int:
        return hit_length.longest(limit, _floors(limits))

    def _limits(self, case: Case) -> list[Limit]:
        unit = lcm(*(group.block_size for group in case.groups))
        spans = [Span("image", start, stop - start, "7f3c") for start, stop in case.spans]
        return [
            Limit("aligned", hit_length.aligned(unit)),
            Limit("spans", hit_length.outside(spans)),
            *(self._group(case, index, unit) for index in range(len(case.groups))),
        ]

    def _group(self, case: Case, index: int, unit: int) -> Limit:
        kind, block_size, size, draft = case.groups[index]
        if kind == "state":
            return Limit(kind, hit_length.checkpoints(case.resident[index]))
        present = bytearray(-(-case.limit // block_size))
        for block in case.resident[index]:
            present[block] = 1
        floor = hit_length.resident(kind, bytes(present), size=size, block_size=block_size)
        if not draft:
            return Limit(kind, floor)
        return Limit("draft", hit_length.ahead(floor, unit=unit, limit=case.limit))

    def _judge(self, case: Case, hit: int) -> None:
        self._coverage.check(
            "the_length_is_outside_every_span",
            not any(start < hit < stop for start, stop in case.spans),
            lambda: f"a hit of {hit} tokens ends inside one of the spans {case.spans}",
        )
        self._coverage.check(
            "the_length_is_valid_in_every_group",
            0 <= hit <= case.limit and is_valid(case, hit),
            lambda: f"a hit of {hit} tokens is not valid for all of {case}",
        )
        best = longest_by_trying(case)
        self._coverage.check(
            "the_hit_is_the_longest_valid_length",
            hit == best,
            lambda: f"the hit is {hit} tokens, but {best} are valid for all of {case}",
        )

    def _judge_drafts(self, case: Case, hit: int, limits: list[Limit]) -> None:
        ends = [_first_gap(case, index) for index, group in enumerate(case.groups) if _leads(group)]
        if not ends:
            return
        unit = lcm(*(group.block_size for group in case.groups))
        others = limits[:2] + [
            limit for limit, group in zip(limits[2:], case.groups, strict=True) if not _leads(group)
        ]
        once = self._find(max(0, min(case.limit, *ends) - unit), others)
        self._coverage.check(
            "several_draft_groups_cost_one_unit",
            hit == once,
            lambda: f"lowering the limit once by {unit} leaves {once} tokens, not {hit}: {case}",
        )

    def _judge_order(self, case: Case, hit: int, limits: list[Limit]) -> None:
        turned = self._find(case.limit, limits[::-1])
        self._coverage.check(
            "the_order_of_groups_does_not_matter",
            turned == hit,
            lambda: f"asked in the opposite order, the hit is {turned}, not {hit}: {case}",
        )

    def _judge_losses(self, case: Case, hit: int, steps: list[Reduction]) -> None:
        lost = sum(step.before - step.after for step in steps)
        self._coverage.check(
            "lost_tokens_add_up",
            lost == case.limit - hit,
            lambda: f"{steps} explain {lost} of {case.limit - hit} tokens: {case}",
        )


def _floors(limits: Sequence[Limit]) -> list[Floor]:
    return [limit.floor for limit in limits]


def _leads(group: Group) -> bool:
    return group.draft and group.kind == "full"


def _first_gap(case: Case, index: int) -> int:
    """Return where the leading blocks of a group end, in tokens."""
    there, size = case.resident[index], case.groups[index].block_size
    return size * sum(block == place for place, block in enumerate(there))


def _situations(case: Case, hit: int, limits: list[Limit], steps: list[Reduction]) -> list[str]:
    """Return what happened; a case that misses everything shows nothing."""
    if not hit:
        return []
    asked = [step.which for step in steps]
    groups = case.groups
    happened = {
        TWO_ROUNDS: asked != sorted(set(asked)),
        HOLE: any(_looks_over_a_hole(case, index, hit) for index in range(len(groups))),
        ODD_CHUNK: any(g.kind == "chunk" and g.size % g.block_size for g in groups),
        TINY_WINDOW: any(g.kind == "window" and g.size == 1 for g in groups),
        DRAFTS: sum(g.draft and g.kind != "state" for g in groups) > 1,
        MIXED: len({g.block_size for g in groups}) > 2,
    }
    last = [LIMITS[limits[asked[-1]].name]] if asked else []
    return last + [situation for situation, so in happened.items() if so]


def _looks_over_a_hole(case: Case, index: int, hit: int) -> bool:
    kind, size = case.groups[index].kind, case.groups[index].block_size
    return kind in ("window", "chunk") and not set(range(hit // size)) <= set(case.resident[index])


def _chooser(draw: Draw) -> Choose:
    return lambda first, last: draw(st.integers(first, last))


def draw_config(draw: Draw) -> Config:
    """Draw groups."""
    return {"groups": [list(group) for group in choose_groups(_chooser(draw))]}


def draw_operation(machine: HitLengthMachine, draw: Draw) -> tuple[str, Config]:
    """Draw what one request finds."""
    return "hit", arguments_of(choose_case(_chooser(draw), machine.groups))


def arguments_of(case: Case) -> Config:
    """Return a case as the arguments of its operation."""
    return {
        "limit": case.limit,
        "resident": [list(there) for there in case.resident],
        "spans": [list(span) for span in case.spans],
    }


SUITE = ComponentSuite(
    "hits", PROPERTIES, draw_config, HitLengthMachine, draw_operation, target_provided=offered
)
