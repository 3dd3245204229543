"""The machine of the suite `cache`: a target and a `Session`, and its reports."""

from __future__ import annotations

import json
from typing import Any, Literal

import msgspec

from kvproof.harness.contract import format as wording
from kvproof.harness.contract import operations as ops
from kvproof.harness.contract.target import Completed, Scheduled, TargetConfig
from kvproof.harness.isolation.handles import Handle
from kvproof.harness.oracle.violation import describe_writer
from kvproof.harness.records.events import BlockView
from kvproof.harness.reproduce import script
from kvproof.harness.reproduce.session_play import making_room, operation, play
from kvproof.harness.session import Session
from kvproof.suites.framework.component_suite import IGNORED, Config, Counterexample, Operation
from kvproof.suites.framework.coverage import Coverage

SMALL_POOL = 32
"""Blocks up to which a report shows the whole pool."""


class SessionMachine:
    """Drives a new target of `handle` through its contract; a session judges every answer."""

    def __init__(self, handle: Handle, config: Config, coverage: Coverage) -> None:
        native = msgspec.convert(config, TargetConfig)
        self.session = Session(handle.create(native), native)
        self._coverage = coverage
        self._answer: object = None
        self.session.state.excuse = coverage.excuse
        coverage.checks = self.session.checks
        coverage.situations = self.session.situations.seen
        coverage.hits = self.session.situations.hits

    def apply(self, verb: str, /, **arguments: Any) -> object:
        """Run one operation and judge its answer; returns the answer in words.

        Ignores an operation that earlier answers made impossible. Completes first a step that may
        not be overtaken.
        """
        session, before = self.session, len(self.session.history)
        done = play(session, making_room(session, [operation(verb, arguments)]))
        carried_out = len(session.history) - before
        if carried_out > 1:
            self._coverage.operations["complete"] += carried_out - 1
        if not done:
            self._answer = IGNORED
        elif carried_out:  # not the end of a step that ended at once
            self._answer = wording.answer(session.history[-1][1])
        return self._answer

    def close(self) -> None:
        """Close the target. Raises TargetDied."""
        self.session.target.close()


class SessionReporting:
    """Histories in the words of the contract."""

    def operations(self, machine: SessionMachine, _: list[Operation]) -> list[Operation]:
        """Return the operations that the session recorded, with the end of each step."""
        return [
            Operation(ops.name(each), json.dumps(ops.compact(each)), wording.answer(answer))
            for each, answer in machine.session.history
        ]

    def ends(self, machine: SessionMachine) -> dict[int, list[tuple[str, str]]]:
        """Return place -> the ends of steps right after it: arguments and answer in words."""
        session = machine.session
        size = session.layout.unit if session.layout.single else 0
        return {
            place: [_end(step, done, size) for step, done in ends]
            for place, ends in session.ends.items()
            if not isinstance(session.history[place][0], ops.Complete)
        }

    def arguments(self, each: Operation) -> str:
        """Return the request, the tokens or the block count of an operation."""
        return wording.arguments(operation(each.verb, each.arguments))

    def script(self, found: Counterexample, target: str) -> str:
        """Return a script whose `Session` judges the same operations."""
        config = msgspec.convert(found.history.config, TargetConfig)
        applied = [operation(each.verb, each.arguments) for each in found.history.operations]
        return script.render(target, found.violation, config, applied)

    def blocks(self, found: Counterexample) -> tuple[list[BlockView], dict[str, list[int]]]:
        """Return the blocks of a small pool, or the suspects, and the tables of requests."""
        if found.history.machine is None:
            return [], {}
        session: Session = found.history.machine.session
        tables = {name: list(live.blocks) for name, live in session.live.items()}
        return blocks(session, found.violation.suspects), tables


def _end(step: Scheduled, done: Completed, size: int) -> tuple[str, str]:
    wrote = wording.written(step, size) if size else ""
    return f"step {step.step}", "; ".join(filter(None, (wrote, wording.answer(done))))


def blocks(session: Session, suspects: tuple[int, ...]) -> list[BlockView]:
    """Return every block of a small pool, or only the suspects of a large one."""
    holders: dict[int, list[str]] = {}
    owners = [(live.request.id, live.blocks) for live in session.live.values()]
    owners += [(fenced.request.id, fenced.blocks) for fenced in session.state.fenced]
    for name, table in owners:
        for block in table:
            holders.setdefault(block, []).append(name)
    for pin, table in session.state.pins.items():
        for block in table:
            holders.setdefault(block, []).append(f"pin {pin}")
    small = session.config.num_blocks <= SMALL_POOL
    shown = range(session.config.num_blocks) if small else sorted(set(suspects))
    return [_view(session, block, holders.get(block, []), suspects) for block in shown]


def _view(session: Session, block: int, owners: list[str], suspects: tuple[int, ...]) -> BlockView:
    written = session.state.shadow.writer_of_block(block)
    words = ""
    if written:
        writer, first, last = written
        words = f"positions {first}..{last}: {describe_writer(writer, last)}"
    return BlockView(
        block=block,
        owners=owners,
        writer=words,
        state=_state(session, block, owners),
        suspect=block in suspects and block != 0,
    )


def _state(
    session: Session, block: int, owners: list[str]
) -> Literal["null", "free", "cached", "held"]:
    if block == 0:
        return "null"
    if owners:
        return "held"
    return "cached" if block in session.state.model.cached else "free"
