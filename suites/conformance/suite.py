"""The suite `cache`: any target, driven through its contract and judged by the shadow memory."""

from __future__ import annotations

from functools import partial
from typing import Literal

from kvproof.harness.contract import format as wording
from kvproof.harness.contract import operations as ops
from kvproof.harness.errors import TargetDied
from kvproof.harness.isolation.handles import Handle
from kvproof.harness.oracle.session import Session
from kvproof.harness.oracle.violation import Violation, describe_writer
from kvproof.harness.records.events import BlockView, Step
from kvproof.harness.reproduce import oplog, script
from kvproof.suites.conformance.explore import explore
from kvproof.suites.conformance.properties import PROPERTIES, on, supported, why_unsupported
from kvproof.suites.framework.property import Level, Property
from kvproof.suites.framework.suite import Evidence, Suite

NAME = "cache"
SMALL_POOL = 32
"""Blocks up to which a report shows the whole pool."""


def _demanded(handle: Handle, level: Level) -> tuple[Property, ...]:
    try:
        profile = handle.profile
    except TargetDied:  # it is told when the target is started
        return properties(level)
    return tuple(on(prop, profile) for prop in properties(level))


def properties(level: Level) -> tuple[Property, ...]:
    """Return what the suite demands at a level."""
    return tuple(prop for prop in PROPERTIES if level == "full" or prop.level == "core")


def cache_suite(handle: Handle, level: Level) -> Suite:
    """Return the suite for one target."""

    def why_not(prop: Property) -> str:
        profile = handle.profile
        return "" if supported(prop, profile) else why_unsupported(prop, profile)

    demanded = _demanded(handle, level)
    return Suite(
        name=NAME,
        properties=demanded,
        beyond=tuple(prop for prop in PROPERTIES if prop not in properties(level)),
        why_not=why_not,
        explore=partial(explore, handle, level=level),
        evidence=partial(_evidence, handle.name),
    )


def _evidence(target: str, violation: Violation) -> Evidence:
    session = violation.session
    assert session is not None
    log = oplog.record(target, violation)
    return Evidence(
        fingerprint=log.fingerprint,
        log=oplog.dump(log),
        script=script.render(target, violation),
        history=steps(session, violation.sentence),
        blocks=blocks(session, violation.suspects),
        tables={name: list(live.blocks) for name, live in session.live.items()},
    )


def steps(session: Session, note: str) -> list[Step]:
    """Spell out a history, with what went wrong on its last step."""
    last = len(session.history) - 1
    return [
        Step(
            op=ops.name(operation),
            arguments=wording.arguments(operation),
            answer=wording.answer(answer),
            note=note if index == last else "",
        )
        for index, (operation, answer) in enumerate(session.history)
    ]


def blocks(session: Session, suspects: tuple[int, ...]) -> list[BlockView]:
    """Show every block of a small pool as it stands, of a large one only the suspects."""
    holders: dict[int, list[str]] = {}
    owners = [(live.request.id, live.blocks) for live in session.live.values()]
    owners += [(fenced.request.id, fenced.blocks) for fenced in session.fenced]
    for name, table in owners:
        for block in table:
            holders.setdefault(block, []).append(name)
    for pin, table in session.pins.items():
        for block in table:
            holders.setdefault(block, []).append(f"pin {pin}")
    small = session.config.num_blocks <= SMALL_POOL
    shown = range(session.config.num_blocks) if small else sorted(set(suspects))
    return [_view(session, block, holders.get(block, []), suspects) for block in shown]


def _view(session: Session, block: int, owners: list[str], suspects: tuple[int, ...]) -> BlockView:
    written = session.shadow.writer_of_block(block)
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
    return "cached" if block in session.ledger.cached else "free"
