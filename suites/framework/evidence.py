"""Evidence of a failure for people: op log, script, history, blocks."""

from __future__ import annotations

import textwrap
from contextlib import suppress
from typing import NamedTuple

from msgspec.structs import replace

from kvproof.harness.errors import ANSWERS
from kvproof.harness.oracle.violation import SHADOW, Violation
from kvproof.harness.records.events import BlockView, Step
from kvproof.harness.records.timeline import Timeline
from kvproof.harness.reproduce import oplog, script
from kvproof.suites.framework.component_suite import (
    Counterexample,
    History,
    Operation,
    carry_out,
)

PLAY = "kvproof.suites.play"
"""The one module that scripts of component suites import."""


class Evidence(NamedTuple):
    """The durable forms of a counterexample."""

    fingerprint: str
    log: bytes
    script: str
    history: list[Step]
    blocks: list[BlockView]
    tables: dict[str, list[int]]
    timeline: Timeline | None
    related: list[str]
    """Other properties that the last operation breaks."""


def evidence(found: Counterexample, target: str) -> Evidence:
    """Return the evidence of a counterexample on a target."""
    violation, history = found
    reporting = history.suite.reporting
    log = log_of(found, target)
    blocks, tables = reporting.blocks(found) if reporting else ([], {})
    return Evidence(
        fingerprint=log.fingerprint,
        log=oplog.dump(log),
        script=reporting.script(found, target) if reporting else play_script(found, target),
        history=steps(history, violation.sentence),
        blocks=blocks,
        tables=tables,
        timeline=history.suite.timeline(found),
        related=related(found),
    )


def related(found: Counterexample) -> list[str]:
    """Return the other properties that the last operation breaks, wrong content first.

    The check that comes first ends a history, whether it sees the cause or a symptom. So the
    history is run once more and goes on to the end of its last operation.
    """
    if found.violation.property == ANSWERS:
        return []
    again, broken = History(found.history.suite, found.history.config), list[Violation]()

    def noted(violation: Violation) -> bool:
        broken.append(violation)
        return True

    again.coverage.excuse = noted
    calls = [(each.verb, each.arguments) for each in found.history.operations]
    with suppress(Exception):  # after a violation the books need not be in order
        try:
            carry_out(again, calls)
        except Violation as violation:
            broken.append(violation)
    broken.sort(key=lambda violation: violation.oracle != SHADOW)
    others = {each.property: each.oracle for each in broken}
    others.pop(found.violation.property, None)
    return [f"{name} ({oracle}) fails by the same operation" for name, oracle in others.items()]


def log_of(found: Counterexample, target: str) -> oplog.OpLog:
    """Return the op log of a counterexample."""
    history = found.history
    return oplog.record(
        found.violation,
        suite=history.suite.name,
        target=target,
        config=history.config,
        calls=[(each.verb, each.arguments) for each in history.operations],
    )


def play_script(found: Counterexample, target: str) -> str:
    """Return a script that fails on the wrong system and passes when it is fixed."""
    history = found.history
    calls = [f"({each.verb!r}, {each.arguments!r})," for each in history.operations]
    return script.source(
        found.violation,
        {PLAY: ["play"]},
        [
            f"play({history.suite.name!r}, {history.config!r}, [",
            *(textwrap.indent(call, "    ") for call in calls),
            f"], target={target!r})",
        ],
        target=target,
    )


def steps(history: History, note: str) -> list[Step]:
    """Return a history as steps, with the failure on its last one."""
    reporting = history.suite.reporting
    ends = reporting.ends(history.machine) if reporting and history.machine else {}
    found: list[Step] = []
    for index, each in enumerate(history.operations):
        arguments = reporting.arguments(each) if reporting else keywords(each)
        found.append(Step(op=each.verb, arguments=arguments, answer=each.answer))
        found += [
            Step(op="complete", arguments=step, answer=answer, implied=True)
            for step, answer in ends.get(index, ())
        ]
    return [*found[:-1], replace(found[-1], note=note)] if found else []


def keywords(operation: Operation) -> str:
    """Return the keywords of an operation in Python syntax."""
    return ", ".join(f"{name}={value!r}" for name, value in operation.arguments.items())
