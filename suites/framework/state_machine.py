"""The Hypothesis state machine that drives every suite, and its exploration."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, ClassVar, cast

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvproof.suites.framework.component_suite import (
    Arguments,
    ComponentSuite,
    Config,
    Draw,
    DrawConfig,
    History,
    WorkloadConfigs,
)
from kvproof.suites.framework.explore import Elsewhere, Exploration, Watch, drive_all
from kvproof.suites.framework.shrink import cut_down, minimise, size


@st.composite
def _draws(draw: st.DrawFn) -> st.DrawFn:
    """Return the function that draws for the rest of a history.

    That of `st.data()` makes the same choices, but it copies the state of `random` and keeps notes
    at each draw, which is a tenth of all time.
    """
    return draw


class SuiteStateMachine(RuleBasedStateMachine):
    """Draws a configuration and makes a history; subclassed per exploration and profile.

    A subclass with rules draws operations and applies them with `apply`.
    """

    suite: ClassVar[ComponentSuite]
    draw_config: ClassVar[Callable[[Draw], Config]]
    watch: ClassVar[Watch]
    history: History

    @initialize(draw=_draws())
    def create(self, draw: Draw) -> None:
        """Draw a configuration and make a machine of it."""
        self.history = History(self.suite, type(self).draw_config(draw))
        with self.watch.operation(self.history):
            self.history.open()
        self.created(draw)

    def created(self, draw: Draw) -> None:
        """Draw more before the first operation."""

    def apply(self, verb: str, arguments: Mapping[str, Any]) -> object:
        """Run and judge one operation, unless the time is up."""
        with self.watch.operation(self.history):
            return self.history.apply(verb, arguments)

    @invariant()
    def checks(self) -> None:
        """The machine judges everything; one invariant keeps reproducers short."""

    def teardown(self) -> None:
        """Count the operations and checks, and close the machine."""
        if hasattr(self, "history"):
            self.watch.ended(self.history)


class DrawnOperations(SuiteStateMachine):
    """One rule: draw the next operation with the suite's strategy, and apply it."""

    @rule(draw=_draws())
    def step(self, draw: Draw) -> None:
        """Draw and run one operation."""
        self.apply(*self.draw_operation(draw))

    def draw_operation(self, draw: Draw) -> tuple[str, Arguments]:
        """Draw the next operation."""
        assert self.suite.draw_operation is not None, "a suite draws operations or has rules"
        return self.suite.draw_operation(self.history.machine, draw)


def explore(
    suite: ComponentSuite,
    budget: settings,
    *,
    seed: int | None = None,
    progress: Callable[[int], None] = lambda _: None,
    shrinking: Callable[[int], None] = lambda _: None,
    tolerate: Collection[str] = (),
    deadline: float = math.inf,
    claim: Callable[[str], bool] = lambda _: True,
    shrink: bool = True,
    elsewhere: Elsewhere = lambda _: None,
) -> Exploration:
    """Drive `suite` through random histories until the budget is spent or a property fails.

    The budget is dealt out evenly to the suite's profiles. The keywords are those of `Watch` and
    of `drive_all`, and `shrink`: whether the failing history is made shorter.
    Raises errors of the harness; Ctrl-C is not raised, since earlier histories may hold a
    violation.
    """
    watch = Watch(size, tolerate, deadline, progress, shrinking, claim)
    if not shrink:
        phases = tuple(phase for phase in budget.phases if phase is not Phase.shrink)
        budget = settings(budget, phases=phases)
    seen = drive_all(_machines(suite, watch), watch, budget, seed=seed, elsewhere=elsewhere)
    if not shrink:
        return seen
    return cut_down(seen, partial(minimise, suite, tried=watch.still_shrinking))


def _machines(suite: ComponentSuite, watch: Watch) -> list[type[SuiteStateMachine]]:
    """Return one for each profile; their names separate examples in a database."""
    profiles = suite.profiles or (suite.draw_config,)
    return [_machine(suite, watch, index, profile) for index, profile in enumerate(profiles)]


def _machine(
    suite: ComponentSuite, watch: Watch, index: int, profile: DrawConfig | WorkloadConfigs
) -> type[SuiteStateMachine]:
    base = cast("type[SuiteStateMachine]", suite.rules or DrawnOperations)
    title = suite.name.title()
    if isinstance(profile, WorkloadConfigs):
        name = f"{profile.name.title().replace(' ', '')}{title}Machine"
        draw_config, options = profile.draw_config, profile.options
    else:
        name, draw_config, options = f"{title}{index or ''}Machine", profile, {}
    fixed = {"suite": suite, "watch": watch, "draw_config": staticmethod(draw_config)}
    return type(name, (base,), {**options, **fixed})
