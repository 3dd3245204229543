"""The one state machine that drives every part."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from kvproof.harness.errors import TargetDied
from kvproof.harness.oracle.violation import Violation
from kvproof.suites.framework.explore import (
    Counts,
    Exploration,
    Watch,
    cut_down,
    drive_all,
    without_needless,
)
from kvproof.suites.framework.model_test import (
    Arguments,
    Config,
    Draw,
    History,
    Operation,
    Part,
    PartViolation,
    run,
)


class PartMachine(RuleBasedStateMachine):
    """Draws a configuration, then operations; subclassed per exploration and theme."""

    part: ClassVar[Part]
    draw_config: ClassVar[Callable[[Draw], Config]]
    watch: ClassVar[Watch]
    history: History

    @initialize(data=st.data())
    def create(self, data: Any) -> None:
        """Draw a world."""
        config = type(self).draw_config(data.draw)
        with self.watch.operation():
            self.history = History(self.part, config)

    @rule(data=st.data())
    def step(self, data: Any) -> None:
        """Draw and run one operation."""
        verb, arguments = self.propose(data.draw)
        with self.watch.operation():
            self.history.apply(verb, arguments)

    def propose(self, draw: Draw) -> tuple[str, Arguments]:
        """Draw the next operation."""
        return self.part.propose(self.history.world, draw)

    def teardown(self) -> None:
        """Count what was done."""
        if hasattr(self, "history"):
            seen = self.history.recorder
            self.watch.ended(
                Counts(
                    test_cases=1,
                    operations=seen.operations,
                    situations=seen.situations,
                    checks=seen.checks,
                    hits=seen.hits,
                )
            )


def explore(
    part: Part,
    budget: settings,
    *,
    seed: int | None = None,
    progress: Callable[[int], None] = lambda _: None,
    tolerate: Collection[str] = (),
    deadline: float = math.inf,
    claim: Callable[[str], bool] = lambda _: True,
) -> Exploration:
    """Drive `part` through random histories until the budget is spent or a property fails.

    The arguments are those of `Watch`.
    """
    watch = Watch(_size, tolerate, deadline, progress, claim)
    seen = drive_all(_machines(part, watch), watch, budget, seed=seed)
    return cut_down(seen, partial(_minimise, part))


def _machines(part: Part, watch: Watch) -> list[type[PartMachine]]:
    """One for each theme; their names keep examples apart in a database."""
    return [
        type(
            f"{part.name.title()}{index or ''}Machine",
            (PartMachine,),
            {"part": part, "watch": watch, "draw_config": staticmethod(draw_config)},
        )
        for index, draw_config in enumerate(part.themes or (part.draw_config,))
    ]


def _minimise(part: Part, violation: Violation) -> Violation:
    assert isinstance(violation, PartViolation)
    config = violation.history.config
    return without_needless(violation, _operations, lambda kept: _broken_by(part, config, kept))


def _operations(violation: Violation) -> list[Operation]:
    assert isinstance(violation, PartViolation)
    return violation.history.operations


def _size(violation: Violation) -> tuple[int, int]:
    operations = _operations(violation)
    return len(operations), sum(len(each.text) for each in operations)


def _broken_by(part: Part, config: dict[str, Any], kept: list[Operation]) -> Violation | None:
    try:
        run(part, config, [(each.verb, each.arguments) for each in kept])
    except PartViolation as violation:
        return violation
    except TargetDied:
        return None
    return None
