"""Parts: property suites of one part of the reference each, with a model of their own.

The suite `cache` works on any target. A part looks inside the reference engine: its world holds
the real thing beside a model, and one Hypothesis machine (`part_machine`) drives every part. A
history is a configuration and a list of operations, all JSON, so that it can be logged, printed
as a script and run again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

from kvproof.harness.errors import TargetDied
from kvproof.harness.isolation.registry import open_handle
from kvproof.harness.oracle.violation import Violation
from kvproof.suites.framework.property import Property

Config: TypeAlias = dict[str, Any]
"""A JSON object: what a world is built from."""
Arguments: TypeAlias = dict[str, Any]
"""A JSON object: the keywords of one operation."""
Draw: TypeAlias = Callable[[Any], Any]
"""Hypothesis' `data.draw`: takes a strategy, returns a value."""


class World(Protocol):
    """The subject and its model. Deterministic: equal histories give equal outcomes."""

    def apply(self, verb: str, /, *_: Any, **arguments: Any) -> object:
        """Run one operation on subject and model, check everything, return what to print.

        A verb that makes no sense now is ignored: shrinking leaves operations out. (Nothing is
        passed as `_`; a protocol with both takes worlds that spell their keywords out.)
        """


class Recorder:
    """Counts what a world checked and saw, and judges it."""

    def __init__(self, properties: Iterable[Property]) -> None:
        self.checks: Counter[str] = Counter()
        self.situations: Counter[str] = Counter()
        self.hits: Counter[str] = Counter()
        """Units that a hit had -> how often, where the subject finds any."""
        self.operations: Counter[str] = Counter()
        self._oracles = {prop.name: prop.oracle for prop in properties}

    def saw(self, situation: str, happened: object = True) -> None:  # noqa: FBT002 - a condition
        """Count a situation if `happened` is true."""
        if happened:
            self.situations[situation] += 1

    def check(
        self,
        prop: str,
        ok: object,
        sentence: Callable[[], str],
        *,
        oracle: str = "",
    ) -> None:
        """Count a check. Raises Violation if `ok` is false, KeyError for an unknown property.

        `oracle` says who judged, if not the one that the property names.
        """
        judge = self._oracles[prop]
        self.checks[prop] += 1
        if not ok:
            raise PartViolation(prop, oracle or judge, sentence())


class Ask(Protocol):
    """Asks a target: calls (a verb and its keywords, JSON) in order, their answers in order."""

    def __call__(self, *calls: tuple[str, Arguments]) -> list[Any]:
        """Carry the calls out. Raises TargetDied."""


class Offered(NamedTuple):
    """A part whose subject is what a target offers (`Profile.parts`)."""

    part: Part
    without: Mapping[str, str]
    """Properties that cannot be judged on it, and why. The others have the situations that can
    occur there."""


class Part(NamedTuple):
    """A property suite of one part of the reference."""

    name: str
    properties: tuple[Property, ...]
    draw_config: Callable[[Draw], Config]
    world: Callable[[Config, Recorder], World]
    propose: Callable[[Any, Draw], tuple[str, Arguments]]
    """Draw the next operation for a world as it stands: a verb and its keywords."""
    themes: tuple[Callable[[Draw], Config], ...] = ()
    """Draw configurations of one kind each, in place of `draw_config`: a budget is dealt out
    evenly to them, so that no kind is left to chance."""
    missing: Callable[[], str] = str
    """Says what the part needs and is not installed; empty: it can run here."""
    offered: Callable[[Ask], Offered] | None = None
    """The same on another implementation, where targets may offer theirs."""


class Operation(NamedTuple):
    """One operation of a history."""

    verb: str
    text: str
    """The keywords as JSON: nothing that a world does can change them."""
    answer: str = ""

    @property
    def arguments(self) -> Arguments:
        """A fresh copy of the keywords."""
        arguments: Arguments = json.loads(self.text)
        return arguments


class PartViolation(Violation):
    """A property of a part failed; `history` is how it came to that."""

    history: History


class History:
    """One world and everything that was done to it.

    Raises PartViolation and TargetDied with `history`, TypeError for what is not JSON.
    """

    def __init__(self, part: Part, config: Config) -> None:
        self.part = part
        self.config: Config = json.loads(json.dumps(config))
        self.recorder = Recorder(part.properties)
        self.operations: list[Operation] = []
        self.world = self._judged(lambda: part.world(dict(self.config), self.recorder))

    def apply(self, verb: str, arguments: Mapping[str, Any]) -> object:
        """Run one operation; a failure is its answer."""
        operation = Operation(verb, json.dumps(arguments))
        self.operations.append(operation)
        self.recorder.operations[verb] += 1
        answer = self._judged(lambda: self.world.apply(verb, **operation.arguments))
        self.operations[-1] = operation._replace(answer="" if answer is None else str(answer))
        return answer

    def _judged(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except PartViolation as violation:
            violation.history = self
            raise
        except Exception as error:
            if not _raised_by_reference(error):
                raise
            died = TargetDied("crash", f"the reference raised {type(error).__name__}: {error}")
            died.session = self
            raise died from error


def _raised_by_reference(error: BaseException) -> bool:
    """Tell whether kvproof's innermost frame is the reference: it broke down, not its model."""
    modules, trace = [], error.__traceback__
    while trace:
        modules.append(str(trace.tb_frame.f_globals.get("__name__", "")))
        trace = trace.tb_next
    own = [name for name in modules if name.startswith("kvproof")]  # also copies with faults
    return bool(own) and not any(layer in own[-1] for layer in (".suites.", ".harness."))


def run(part: Part, config: Config, operations: Iterable[tuple[str, Mapping[str, Any]]]) -> History:
    """Run a history from its beginning. Raises PartViolation, TargetDied."""
    history = History(part, config)
    for verb, arguments in operations:
        history.apply(verb, arguments)
    return history


def play(
    name: str,
    config: Config,
    operations: Iterable[tuple[str, Mapping[str, Any]]],
    *,
    target: str = "",
) -> History:
    """Run a history of the part called `name`, on what a target offers if one is named.

    Raises PartViolation, TargetDied, UsageError.
    """
    from kvproof.suites.runner.registry import find  # parts are made of this module

    if not target:
        return run(find(name), config, operations)
    from kvproof.suites.framework.model_test_suite import offered_part  # as above

    with open_handle(target) as handle:
        return run(offered_part(find(name), handle), config, operations)
