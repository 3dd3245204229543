"""Suite `hits`: one operation, the hit of a request in the groups of the configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from hypothesis import strategies as st

from kvproof.suites.framework.component_suite import ComponentSuite, Config, Draw
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.hit_length import properties as seen
from kvproof.suites.reference.hit_length.cases import (
    Case,
    Choose,
    Group,
    choose_case,
    choose_groups,
    is_valid,
    longest_by_trying,
)
from kvproof.suites.reference.hit_length.engine_index import on_index
from kvproof.suites.reference.hit_length.index import LiveIndex, Reduction, as_indexed
from kvproof.suites.reference.hit_length.properties import PROPERTIES

Spans: TypeAlias = Sequence[tuple[int, int]]


class HitLengthMachine:
    """Compares the reference's hit with the oracle."""

    def __init__(self, config: Config, coverage: Coverage) -> None:
        self.groups = tuple(Group(*group) for group in config["groups"])
        self._coverage = coverage

    def apply(
        self, verb: str, *, limit: int, resident: Sequence[Sequence[int]], spans: Spans
    ) -> object:
        assert verb == "hit", verb
        there = tuple(map(tuple, resident))
        case = Case(self.groups, limit, there, tuple((start, stop) for start, stop in spans))
        case = as_indexed(case)
        index = LiveIndex(case)
        hit, steps = index.hit(), index.reductions()
        self._judge_drafts(case, hit)
        self._judge_order(case, hit)
        self._judge(case, hit)
        self._judge_losses(case, hit, steps)
        for situation in _situations(case, hit, steps):
            self._coverage.event(situation)
        return hit

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

    def _judge_drafts(self, case: Case, hit: int) -> None:
        if not any(group.draft and group.kind != "state" for group in case.groups):
            return
        more = Group("window", case.groups[0].block_size, 1, draft=True)
        again = LiveIndex(
            case._replace(groups=(*case.groups, more), resident=(*case.resident, ()))
        ).hit()
        self._coverage.check(
            "several_draft_groups_cost_one_unit",
            hit == again,
            lambda: f"one draft group more leaves {again} tokens, not {hit}: {case}",
        )

    def _judge_order(self, case: Case, hit: int) -> None:
        turned = LiveIndex(
            case._replace(groups=case.groups[::-1], resident=case.resident[::-1])
        ).hit()
        self._coverage.check(
            "the_order_of_groups_does_not_matter",
            turned == hit,
            lambda: f"in the opposite order of groups, the hit is {turned}, not {hit}: {case}",
        )

    def _judge_losses(self, case: Case, hit: int, steps: list[Reduction]) -> None:
        lost = sum(step.before - step.after for step in steps)
        self._coverage.equal("lost_tokens_add_up", lost, case.limit - hit, "explained lost tokens:")


def _situations(case: Case, hit: int, steps: list[Reduction]) -> list[str]:
    """Return the situations; a case that misses everything shows nothing."""
    if not hit:
        return []
    applied = [step.which for step in steps]
    groups = case.groups
    happened = {
        seen.TWO_ROUNDS: applied != sorted(set(applied)),
        seen.HOLE: any(_looks_over_a_hole(case, index, hit) for index in range(len(groups))),
        seen.ODD_CHUNK: any(g.kind == "chunk" and g.size % g.block_size for g in groups),
        seen.TINY_WINDOW: any(g.kind == "window" and g.size == 1 for g in groups),
        seen.DRAFTS: sum(g.draft and g.kind != "state" for g in groups) > 1,
        seen.MIXED: len({g.block_size for g in groups}) > 2,
    }
    last = [seen.LIMITS[steps[-1].name]] if steps else []
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
    return "hit", arguments_of(choose_case(_chooser(draw), machine.groups))


def arguments_of(case: Case) -> Config:
    return {
        "limit": case.limit,
        "resident": [list(there) for there in case.resident],
        "spans": [list(span) for span in case.spans],
    }


SUITE = ComponentSuite(
    "hits", PROPERTIES, draw_config, HitLengthMachine, draw_operation, target_provided=on_index
)
