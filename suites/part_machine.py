"""The one state machine that drives every part."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any, ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from kvproof.harness.errors import TargetDied
from kvproof.harness.violation import Violation
from kvproof.suites.exploration import Counts, Exploration, Watch, drive, without_needless
from kvproof.suites.part import History, Operation, Part, PartViolation, run


class PartMachine(RuleBasedStateMachine):
    """Draws a configuration, then operations; subclassed per exploration."""

    part: ClassVar[Part]
    watch: ClassVar[Watch]
    history: History

    @initialize(data=st.data())
    def create(self, data: Any) -> None:
        """Draw a world."""
        config = self.part.draw_config(data.draw)
        with self.watch.operation():
            self.history = History(self.part, config)

    @rule(data=st.data())
    def step(self, data: Any) -> None:
        """Draw and run one operation."""
        verb, arguments = self.part.propose(self.history.world, data.draw)
        with self.watch.operation():
            self.history.apply(verb, arguments)

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
) -> Exploration:
    """Drive `part` through random histories until the budget is spent or a property fails.

    The arguments are those of `Watch`.
    """
    watch = Watch(_size, tolerate, deadline, progress)
    name = f"{part.name.title()}Machine"  # keeps examples of parts apart in a database
    machine = type(name, (PartMachine,), {"part": part, "watch": watch})
    seen = drive(machine, watch, budget, seed=seed)
    if isinstance(seen.violation, PartViolation) and not seen.interrupted:
        config = seen.violation.history.config
        seen.violation = without_needless(
            seen.violation, _operations, lambda kept: _broken_by(part, config, kept)
        )
    return seen


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
