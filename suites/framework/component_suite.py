"""Component suites: properties of one system, with a machine and strategies to exercise it.

A machine holds the system under test and a model of it. A history is a configuration and a list of
operations, all JSON: it can be logged, printed as a script and run again. In the suite `cache` the
system is a target and the model a `Session`; the others test the reference engine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from hypothesis.stateful import RuleBasedStateMachine

from kvproof.harness.contract.factors import Row
from kvproof.harness.errors import ANSWERS, TargetDied
from kvproof.harness.oracle.violation import SURVIVES, Violation
from kvproof.harness.records.events import BlockView
from kvproof.harness.records.timeline import Timeline
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.framework.failed import Failed
from kvproof.suites.framework.known import Known
from kvproof.suites.framework.pairs import Space
from kvproof.suites.framework.property import Property

Config: TypeAlias = dict[str, Any]
Arguments: TypeAlias = dict[str, Any]
Draw: TypeAlias = Callable[[Any], Any]
"""Hypothesis' `data.draw`: takes a strategy, returns a value."""


class DealtConfig(NamedTuple):
    """A configuration that was drawn from a row of levels."""

    config: Config
    row: Row


DrawConfig: TypeAlias = Callable[[Draw], Config | DealtConfig]

IGNORED: Final = object()
"""The answer of a machine to an operation that makes no sense now."""


class Machine(Protocol):
    """The system under test and its model. Deterministic: equal histories, equal outcomes.

    A method `close`, if there is one, is called at the end of a history.
    """

    def apply(self, verb: str, /, *_: Any, **arguments: Any) -> object:
        """Run one operation on system and model, check everything, return the text to print.

        An operation that makes no sense now is ignored: shrinking leaves operations out. (`_` is
        never passed; with it the protocol accepts machines that spell their keywords out.)
        """


class RemoteCalls(Protocol):
    """Calls a target's own implementation: verbs with JSON keywords, answers in order."""

    def __call__(self, *calls: tuple[str, Arguments]) -> list[Any]:
        """Carry the calls out. Raises TargetDied."""


class TargetProvided(NamedTuple):
    """A component suite on the target's own implementation (`Profile.component_suites`)."""

    suite: ComponentSuite
    without: Mapping[str, str]
    """Properties that cannot be judged on it, with the reason. The others have the situations that
    can occur there."""
    unsupported: Mapping[str, str] = {}
    """Level that is not drawn for it -> the reason."""


class WorkloadConfigs(NamedTuple):
    """One kind of configuration; a budget is dealt out evenly to all kinds."""

    name: str
    draw_config: DrawConfig
    options: Mapping[str, object] = {}
    """Class attributes for the suite's own rules."""


class BySeed(Protocol):
    """A suite's histories, drawn from seeds alone, without Hypothesis."""

    @property
    def end(self) -> Sequence[tuple[str, Arguments]]:
        """The operations at the end of each history."""

    def choices(self, seed: int) -> Any:
        """Return the source of the choices of one history."""

    def config(self, choices: Any, number: int) -> Config | DealtConfig:
        """Choose the configuration of one history: its number counts from 0 in each search."""

    def operation(self, machine: Any, choices: Any) -> tuple[str, Arguments]:
        """Choose the next operation for a machine."""


class Reporting(Protocol):
    """Presentation of a suite's histories where the framework's is not enough."""

    def operations(self, machine: Any, applied: list[Operation]) -> list[Operation]:
        """Return the operations to log, with the consequences of each."""

    def ends(self, machine: Any) -> Mapping[int, Sequence[tuple[str, str]]]:
        """Return place -> calls that ended right after it: their arguments and answers in words."""

    def arguments(self, operation: Operation) -> str:
        """Return the keywords of an operation in words."""

    def script(self, counterexample: Counterexample, target: str) -> str:
        """Return a script that fails on the wrong system and passes when it is fixed."""

    def blocks(
        self, counterexample: Counterexample
    ) -> tuple[list[BlockView], dict[str, list[int]]]:
        """Return the blocks and the tables of requests at the end of a history."""


class ComponentSuite(NamedTuple):
    """Properties of one system, with its machine and strategies."""

    name: str
    properties: tuple[Property, ...]
    draw_config: DrawConfig
    machine: Callable[[Config, Coverage], Machine]
    draw_operation: Callable[[Any, Draw], tuple[str, Arguments]] | None = None
    """Draw the next operation for a machine: a verb and its keywords."""
    profiles: tuple[DrawConfig | WorkloadConfigs, ...] = ()
    """Kinds of configurations, in place of `draw_config`: a budget is dealt out evenly to them."""
    under_test: tuple[str, ...] = ("reference",)
    """Packages below `kvproof` whose errors are failures of the system under test; any other error
    is a fault of the suite."""
    missing: Callable[[], str] = str
    """Returns the missing requirements of the suite; empty: it can run here."""
    target_provided: Callable[[RemoteCalls], TargetProvided] | None = None
    """The suite on a target's implementation, where targets may provide one."""
    by_seed: BySeed | None = None
    """The same histories without Hypothesis; None: there are none."""
    rules: type[RuleBasedStateMachine] | None = None
    """A subclass of `state_machine.SuiteStateMachine` that draws operations, in place of
    `draw_operation`."""
    reporting: Reporting | None = None
    portable: bool = False
    """Whether a log may be replayed on any target, else only on the one that recorded it."""
    timeline: Callable[[Counterexample], Timeline | None] = lambda _: None
    """Timeline of a failing history, where requests run over time."""
    known: tuple[Known, ...] = ()
    """The failures that the target is known to have."""
    space: Space | None = None
    """The table of factors of its configurations, and the levels that situations need."""
    processes: int = 1
    """Most processes that share its profiles in a run, where the machine has as many cores."""


class Operation(NamedTuple):
    """One operation of a history."""

    verb: str
    text: str
    """The keywords as JSON, which no machine can change."""
    answer: str = ""

    @property
    def arguments(self) -> Arguments:
        """Return a fresh copy of the keywords."""
        arguments: Arguments = json.loads(self.text)
        return arguments


class History:
    """One machine, made by `open`, and all operations that were applied to it.

    Raises Violation, TargetDied with the history as its `session`, TypeError for no JSON.
    """

    machine: Any = None

    def __init__(self, suite: ComponentSuite, config: Config | DealtConfig) -> None:
        self.suite = suite
        own, row = config if isinstance(config, DealtConfig) else (config, {})
        self.config: Config = json.loads(json.dumps(own))
        self.coverage = Coverage(suite.properties)
        self.coverage.row = dict(row)
        self.coverage.excuse = self._excuse
        self.known: set[str] = set()
        """The known failures that it met."""
        self.ignored = False
        """Whether the machine ignored the last operation."""
        self._applied: list[Operation] = []

    def open(self) -> None:
        """Make the machine."""
        config = dict(self.config)
        self.machine = self._guarded(lambda: self.suite.machine(config, self.coverage))

    @property
    def operations(self) -> list[Operation]:
        """Return the operations so far, as they are logged."""
        if self.suite.reporting and self.machine is not None:
            return self.suite.reporting.operations(self.machine, self._applied)
        return self._applied

    def apply(self, verb: str, arguments: Mapping[str, Any]) -> object:
        """Run one operation; a failure is its answer."""
        operation = Operation(verb, json.dumps(arguments))
        self._applied.append(operation)
        self.coverage.operations[verb] += 1
        answer = self._guarded(lambda: self.machine.apply(verb, **operation.arguments))
        self.ignored = answer is IGNORED
        self._applied[-1] = operation._replace(
            answer="" if answer in (None, IGNORED) else str(answer)
        )
        return answer

    def recognise(self, violation: Violation) -> Known | None:
        """Return the known failure that a violation is, and note that it was met."""
        failed = self._failed(violation) if self.suite.known else None
        for each in self.suite.known:
            if failed and each.is_it(failed):
                self.known.add(each.name)
                return each
        return None

    def _failed(self, violation: Violation) -> Failed:
        calls = [(each.verb, each.arguments) for each in self._applied]
        return Failed(violation, self.config, calls)

    def _excuse(self, violation: Violation) -> bool:
        known = self.recognise(violation)
        if known is None or not known.goes_on:
            return False
        known.adopt(self._failed(violation))
        return True

    def close(self) -> None:
        """Close the machine. Raises TargetDied."""
        close = getattr(self.machine, "close", None)
        if close:
            close()

    def _guarded(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Violation:
            raise
        except TargetDied as died:
            died.session = self
            raise
        except Exception as error:
            package = _raising_package(error)
            if package not in self.suite.under_test:
                raise
            message = f"the {package} raised {type(error).__name__}: {error}"
            raise self._death(message) from error

    def _death(self, message: str) -> TargetDied:
        died = TargetDied("crash", message)
        died.session = self
        return died


class Counterexample(NamedTuple):
    """A violation and the history that it ends."""

    violation: Violation
    history: History


def unanswered(died: TargetDied, history: History) -> Counterexample:
    """Return a death as a violation of `every_verb_answers`."""
    sentence = f"the target died ({died.kind}): {died}"
    return Counterexample(Violation(ANSWERS, SURVIVES, sentence), history)


def _raising_package(error: BaseException) -> str:
    """Return the package below `kvproof`, or below a copy of it, of the innermost own frame."""
    modules, trace = [], error.__traceback__
    while trace:
        modules.append(str(trace.tb_frame.f_globals.get("__name__", "")).split("."))
        trace = trace.tb_next
    own = [names[1] for names in modules if names[0].startswith("kvproof") and len(names) > 1]
    return own[-1] if own else ""


def run(
    suite: ComponentSuite, config: Config, operations: Iterable[tuple[str, Mapping[str, Any]]]
) -> History:
    """Run a history from its beginning and close it. Raises Violation, TargetDied."""
    history = History(suite, config)
    carry_out(history, operations)
    return history


def counterexample(
    suite: ComponentSuite, config: Config, operations: Iterable[tuple[str, Mapping[str, Any]]]
) -> Counterexample | None:
    """Run a history; return its violation, which may be a death, and itself, if it has one."""
    history = History(suite, config)
    try:
        carry_out(history, operations)
    except Violation as violation:
        return Counterexample(violation, history)
    except TargetDied as died:
        return unanswered(died, history)
    return None


def carry_out(history: History, operations: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    """Run a history from its beginning and close it. Raises Violation, TargetDied."""
    try:
        history.open()
        for verb, arguments in operations:
            history.apply(verb, arguments)
    finally:
        history.close()
