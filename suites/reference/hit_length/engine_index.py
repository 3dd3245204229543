"""The suite `hits` on an engine's own index of several groups (`harness.contract.hit_index`).

Contents are drawn, put into the index, and the engine's own look-up answers. Every answer is
compared with brute force over the rules: the longest valid length, no block that is not there, and
in each group all that the position after the hit reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import lcm
from typing import Any, NamedTuple

from hypothesis import strategies as st

from kvproof.suites.framework.component_suite import (
    IGNORED,
    Arguments,
    ComponentSuite,
    Config,
    Draw,
    RemoteCalls,
    TargetProvided,
)
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.hit_length import properties as seen
from kvproof.suites.reference.hit_length.cases import Case, Group, has_all
from kvproof.suites.reference.hit_length.properties import PROPERTIES

_JUDGED = ("the_length_is_valid_in_every_group", "the_hit_is_the_longest_valid_length")
_WITHOUT = {
    "the_length_is_outside_every_span": "the index knows no spans",
    "several_draft_groups_cost_one_unit": "brute force judges drafts here",
    "the_order_of_groups_does_not_matter": "brute force judges every order here",
    "lost_tokens_add_up": "an index explains no hit",
}
_BLOCKS = (1, 2, 4)
_MOST_UNITS = 8
_CONTENTS = 50
"""Most contents of one operation: one call to the engine's process."""
_ALL_REFUSED = "a configuration that the engine refuses"


class Traits(NamedTuple):
    """Cases that an engine's index accepts."""

    kinds: Sequence[str]
    drafts: bool
    reach: str
    least_window: int
    mixed: Sequence[str] = ()
    """Kinds of groups that may have unequal blocks, without drafts."""
    layouts: Mapping[str, Sequence[Sequence[str]]] = {}
    """Variant of the index -> combinations of kinds; empty: one index, any mix of `kinds`."""
    chained: bool = False
    """Nothing is cached after the first gap of full attention: the index is a tree."""
    exact: bool = False
    """A hit names the blocks that it needs, and no others."""

    @property
    def reached(self) -> tuple[str, ...]:
        """Situations that have to occur."""
        limits = tuple(seen.LIMITS[kind] for kind in self.kinds)
        hole = (seen.HOLE,) if "window" in self.kinds else ()
        return (*limits, *hole, *((seen.LIMITS["draft"],) if self.drafts else ()))


def on_index(ask: RemoteCalls) -> TargetProvided:
    """Return the suite on a target's index."""
    traits = Traits(**ask(("traits", {}))[0])
    judged = (prop for prop in PROPERTIES if prop.name in _JUDGED)
    return TargetProvided(
        ComponentSuite(
            name="hits",
            properties=tuple(prop._replace(situations=traits.reached) for prop in judged),
            draw_config=partial(_draw_config, traits),
            machine=partial(IndexMachine, ask, traits),
            draw_operation=_propose,
        ),
        _WITHOUT,
    )


class IndexMachine:
    """One index; every operation judges several contents."""

    def __init__(
        self, ask: RemoteCalls, traits: Traits, config: Config, coverage: Coverage
    ) -> None:
        self.groups = tuple(Group(*each) for each in config["groups"])
        self.unit = lcm(*(group.block_size for group in self.groups))
        self._ask, self._traits, self._coverage = ask, traits, coverage
        self._opening = ("open", dict(config))
        (self.refused,) = ask(self._opening)

    def apply(self, verb: str, *, contents: list[list[Any]]) -> object:
        assert verb == "hits", verb
        if self.refused:
            self._coverage.event(_ALL_REFUSED)
            return IGNORED
        given = [[limit, self._resident(limit, masks)] for limit, masks in contents]
        _, answers = self._ask(self._opening, ("hits", {"contents": given}))
        for (limit, resident), (hit, named) in zip(given, answers, strict=True):
            case = Case(self.groups, limit, self._ends(resident), ())
            self._judge(case, hit, self._ends(named))
        return [hit for hit, _ in answers]

    def _resident(self, limit: int, masks: Sequence[int]) -> list[list[int]]:
        """Blocks by the bits of a mask; only whole blocks of the prompt exist."""
        ends = [(limit + 1) // group.block_size for group in self.groups]
        if self._traits.chained:
            ends = self._up_to_a_gap(ends, masks)
        return [
            [at for at in range(end) if not mask >> at & 1]
            for end, mask in zip(ends, masks, strict=True)
        ]

    def _up_to_a_gap(self, ends: list[int], masks: Sequence[int]) -> list[int]:
        """All groups end where full attention first has a gap. Blocks are of one size."""
        full = next(at for at, group in enumerate(self.groups) if group.kind == "full")
        gap = next((at for at in range(ends[full]) if masks[full] >> at & 1), ends[full])
        return [gap] * len(ends)

    def _ends(self, blocks: list[list[int]]) -> tuple[tuple[int, ...], ...]:
        """Blocks of each group; of states, the lengths at which they were saved."""
        return tuple(
            tuple((at + 1) * group.block_size if group.kind == "state" else at for at in each)
            for group, each in zip(self.groups, blocks, strict=True)
        )

    def _judge(self, case: Case, hit: int, named: Sequence[Sequence[int]]) -> None:
        best = longest(case, self._traits.reach)
        lacking = self._lacking(case, hit, named)
        facts = self._facts(case, hit, best) if lacking or hit != best else {}
        self._coverage.check(
            "the_length_is_valid_in_every_group",
            not lacking,
            lambda: f"a hit of {hit} tokens {lacking}: {case}",
            facts=facts,
        )
        self._coverage.check(
            "the_hit_is_the_longest_valid_length",
            hit == best,
            lambda: f"the hit is {hit} tokens, but {best} are valid for all of {case}",
            facts=facts,
        )
        self._cover(case, hit)

    def _facts(self, case: Case, hit: int, best: int) -> dict[str, object]:
        """`as_drafts`: the longest length if groups that look like a draft group were ones.

        `one_draft`: the longest one that is valid if a single group were of a draft model.
        """
        drafts = {group._replace(draft=False) for group in case.groups if group.draft}
        groups = tuple(each._replace(draft=each.draft or each in drafts) for each in case.groups)
        least = longest(case._replace(groups=groups), self._traits.reach)
        return {
            "groups": case.groups, "hit": hit, "best": best, "as_drafts": least,
            "one_draft": self._with_one_draft(case),
        }  # fmt: skip

    def _with_one_draft(self, case: Case) -> int:
        """Return the longest valid length if any one of the draft groups were the only one."""
        single = (
            tuple(each._replace(draft=at == draft) for at, each in enumerate(case.groups))
            for draft, group in enumerate(case.groups)
            if group.draft
        )
        reach = self._traits.reach
        return max((longest(case._replace(groups=each), reach) for each in single), default=0)

    def _lacking(self, case: Case, hit: int, named: Sequence[Sequence[int]]) -> str:
        if not 0 <= hit <= case.limit or hit % self.unit:
            return f"is not a whole number of units of {self.unit} up to {case.limit}"
        for index, (group, blocks) in enumerate(zip(self.groups, named, strict=True)):
            if not set(blocks) <= set(case.resident[index]):
                return f"names blocks {blocks} of group {index}, of which some are not cached"
            if any(self._end(group, at) > hit for at in blocks):
                return f"names blocks {blocks} of group {index}, of which some end after the hit"
            if hit and not has_all(group, set(blocks), hit):
                return f"names blocks {blocks} of group {index}, less than its next token reads"
            if self._traits.exact and self._spares(group, blocks, hit):
                return f"names blocks {blocks} of group {index}, more than its next token reads"
        return ""

    @staticmethod
    def _spares(group: Group, blocks: Sequence[int], hit: int) -> bool:
        """Whether the next token reads less than these blocks."""
        return any(has_all(group, {*blocks} - {at}, hit) for at in blocks)

    @staticmethod
    def _end(group: Group, at: int) -> int:
        return at if group.kind == "state" else (at + 1) * group.block_size

    def _cover(self, case: Case, hit: int) -> None:
        self._coverage.hits[str(hit)] += 1
        if not hit:
            return
        for group, there in zip(case.groups, case.resident, strict=True):
            alone = not has_all(group, set(there), hit + self.unit)
            below = hit + self.unit <= case.limit
            self._coverage.event(seen.LIMITS[group.kind], below and alone)
            hole = group.kind == "window" and not set(range(hit // group.block_size)) <= set(there)
            self._coverage.event(seen.HOLE, hole)
        plain = case._replace(groups=tuple(g._replace(draft=False) for g in case.groups))
        drafts = sum(group.draft for group in self.groups)
        self._coverage.event(
            seen.LIMITS["draft"], drafts and longest(plain, self._traits.reach) > hit
        )
        self._coverage.event(seen.DRAFTS, drafts > 1)
        self._coverage.event(seen.MIXED, len({group.block_size for group in self.groups}) > 2)
        odd = any(g.kind == "chunk" and g.size % g.block_size for g in self.groups)
        self._coverage.event(seen.ODD_CHUNK, odd)


def longest(case: Case, reach: str) -> int:
    """Return the longest length that is valid in every group, by trying each unit."""
    unit = lcm(*(group.block_size for group in case.groups))
    lengths = range(case.limit // unit * unit, 0, -unit)
    return next((length for length in lengths if _valid(case, length, unit, reach)), 0)


def _valid(case: Case, length: int, unit: int, reach: str) -> bool:
    for group, resident in zip(case.groups, case.resident, strict=True):
        there = set(resident)
        if not has_all(group, there, length):
            return False
        if group.draft and not _reaches(case, group, there, length + unit, reach):
            return False
    return True


def _reaches(case: Case, group: Group, there: set[int], ahead: int, reach: str) -> bool:
    """Whether a draft group has one unit more (X3); `cached`: up to the end of the prompt."""
    most = case.limit + (reach == "cached")
    if ahead > most or not has_all(group, there, ahead):
        return False
    bound = reach == "matched" or group.kind == "full"
    return not bound or all(
        has_all(each, set(resident), ahead)
        for each, resident in zip(case.groups, case.resident, strict=True)
        if each.kind == "full"
    )


def _draw_config(traits: Traits, draw: Draw) -> Config:
    if traits.layouts:
        return _draw_layout(traits, draw)
    mixed = bool(traits.mixed) and draw(st.integers(0, 3)) == 3
    blocks = _BLOCKS if mixed else (draw(st.sampled_from(_BLOCKS)),)
    kinds = traits.mixed if mixed else traits.kinds
    count = draw(st.integers(1, 4))
    drawn = [_draw_group(traits, kinds, blocks, draw) for _ in range(count)]
    return {"groups": as_model(drawn)}


def _draw_layout(traits: Traits, draw: Draw) -> Config:
    """Draw a variant of the index, and one of the combinations of kinds that it takes."""
    variant, kinds = draw(
        st.sampled_from([(name, each) for name, found in traits.layouts.items() for each in found])
    )
    blocks = (draw(st.sampled_from(_BLOCKS)),)
    groups = [_draw_group(traits, (kind,), blocks, draw) for kind in kinds]
    return {"groups": groups, "variant": variant}


def _draw_group(
    traits: Traits, kinds: Sequence[str], blocks: Sequence[int], draw: Draw
) -> list[Any]:
    kind = draw(st.sampled_from(kinds))
    block = draw(st.sampled_from(blocks))
    least = {"window": traits.least_window, "chunk": 1}.get(kind)
    size = draw(st.integers(least, 12)) if least else 0
    drafts = traits.drafts and kind in ("full", "window") and len(blocks) == 1
    return [kind, block, size, drafts and draw(st.booleans())]


def as_model(groups: list[list[Any]]) -> list[list[Any]]:
    """Return groups that a model may have: chunks with others, and not all for drafts alone."""
    if all(kind == "chunk" for kind, *_ in groups):
        groups = [*groups, ["full", groups[0][1], 0, False]]
    if all(draft for kind, *_, draft in groups if kind != "state"):
        groups = [[kind, block, size, False] for kind, block, size, _ in groups]
    return groups


def _propose(machine: IndexMachine, draw: Draw) -> tuple[str, Arguments]:
    """Draw contents: a limit and, for each group, a mask of the blocks that are gone."""
    most = _MOST_UNITS * machine.unit
    bits = most // min(group.block_size for group in machine.groups)
    some, few = st.integers(0, (1 << bits) - 1), st.integers(0, bits - 1).map(lambda at: 1 << at)
    gone = st.one_of(st.just(0), few, few, some)
    content = st.tuples(st.integers(1, most), st.tuples(*(gone for _ in machine.groups)))
    contents = draw(st.lists(content, min_size=1, max_size=_CONTENTS))
    return "hits", {"contents": [[limit, [*masks]] for limit, masks in contents]}
