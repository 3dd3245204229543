"""The suite `hits` on a target with its own search for the longest prefix of chunks.

Calls: `open(windows)` in chunks, -1 for full attention; `hit(chunks, present) -> {"hit", "kept"}`:
present chunks and chunks that the hit keeps, both for each group.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from hypothesis import strategies as st

from kvproof.suites.framework.component_suite import (
    Arguments,
    ComponentSuite,
    Config,
    Draw,
    RemoteCalls,
    TargetProvided,
)
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.hit_length.cases import Case, Group, is_valid, longest_by_trying
from kvproof.suites.reference.hit_length.engine_index import Traits, on_index
from kvproof.suites.reference.hit_length.properties import HOLE, LIMITS, PROPERTIES

CHUNK = 2
"""Tokens; the need of a window of whole chunks is the same for every size but one."""
MOST = 12
_REACHED = (LIMITS["full"], LIMITS["window"], HOLE)
_JUDGED = (
    "the_length_is_valid_in_every_group",
    "the_hit_is_the_longest_valid_length",
    "the_order_of_groups_does_not_matter",
)
_WITHOUT = "a hit is of whole chunks: spans and drafts lower it in the engine"


def offered(ask: RemoteCalls) -> TargetProvided:
    """Return the suite on a target: on its index, or on its search among chunks."""
    (traits,) = ask(("traits", {}))
    if traits:
        return on_index(ask, Traits(**traits))
    return TargetProvided(
        ComponentSuite(
            name="hits",
            properties=tuple(
                prop._replace(situations=_REACHED) for prop in PROPERTIES if prop.name in _JUDGED
            ),
            draw_config=_draw_config,
            machine=partial(TargetHitLengthMachine, ask),
            draw_operation=_propose,
        ),
        {prop.name: _WITHOUT for prop in PROPERTIES if prop.name not in _JUDGED},
    )


class TargetHitLengthMachine:
    def __init__(self, ask: RemoteCalls, config: Config, coverage: Coverage) -> None:
        self.windows: list[int] = config["windows"]
        self._ask = ask
        self._coverage = coverage

    def apply(self, verb: str, *, chunks: int, present: list[list[int]]) -> object:
        assert verb == "hit", verb
        reported, turned = self._ask(
            ("open", {"windows": self.windows}),
            ("hit", {"chunks": chunks, "present": present}),
            ("open", {"windows": self.windows[::-1]}),
            ("hit", {"chunks": chunks, "present": present[::-1]}),
        )[1::2]
        case = self._case(chunks, present)
        self._judge(case, reported["hit"], turned["hit"])
        self._judge_kept(case, reported["hit"], reported["kept"])
        self._cover(case, reported["hit"])
        return reported["hit"]

    def _case(self, chunks: int, present: list[list[int]]) -> Case:
        groups = (
            Group("full" if window < 0 else "window", CHUNK, max(0, window) * CHUNK, draft=False)
            for window in self.windows
        )
        return Case(tuple(groups), chunks * CHUNK, tuple(map(tuple, present)), ())

    def _judge(self, case: Case, hit: int, turned: int) -> None:
        best = longest_by_trying(case) // CHUNK
        self._coverage.check(
            "the_length_is_valid_in_every_group",
            is_valid(case, hit * CHUNK),
            lambda: f"a hit of {hit} chunks is not valid for all of {case}",
        )
        self._coverage.check(
            "the_hit_is_the_longest_valid_length",
            hit == best,
            lambda: f"the hit is {hit} chunks, but {best} are valid for all of {case}",
        )
        self._coverage.check(
            "the_order_of_groups_does_not_matter",
            turned == hit,
            lambda: f"in the opposite order of groups, the hit is {turned}, not {hit}: {case}",
        )

    def _judge_kept(self, case: Case, hit: int, kept: Sequence[Sequence[int]]) -> None:
        needed = [list(range(self._first(window, hit), hit)) for window in self.windows]
        self._coverage.check(
            "the_length_is_valid_in_every_group",
            [list(each) for each in kept] == needed,
            lambda: f"a hit of {hit} chunks keeps {kept}, it needs {needed}: {case}",
        )

    @staticmethod
    def _first(window: int, hit: int) -> int:
        return 0 if window < 0 else max(0, hit - window)

    def _cover(self, case: Case, hit: int) -> None:
        self._coverage.hits[str(hit)] += 1
        if not hit:
            return
        for group, there in zip(case.groups, case.resident, strict=True):
            alone = Case((group,), case.limit, (there,), ())
            lower = hit * CHUNK < case.limit and not is_valid(alone, (hit + 1) * CHUNK)
            self._coverage.event(LIMITS[group.kind], lower)
            hole = group.kind == "window" and not set(range(hit)) <= set(there)
            self._coverage.event(HOLE, hole)


def _draw_config(draw: Draw) -> Config:
    windows = st.sampled_from((-1, -1, 1, 2, 3, 5))
    return {"windows": draw(st.lists(windows, min_size=1, max_size=4))}


def _propose(machine: TargetHitLengthMachine, draw: Draw) -> tuple[str, Arguments]:
    chunks = draw(st.integers(1, MOST))
    holes = st.sets(st.integers(0, chunks - 1), max_size=3)
    some = st.sets(st.integers(0, chunks - 1))
    every = set(range(chunks))
    there = (holes.map(lambda gone: every - gone)) | some
    present = [sorted(draw(there)) for _ in machine.windows]
    return "hit", {"chunks": chunks, "present": present}
