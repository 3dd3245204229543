"""The border where answers enter: what an answer names must exist.

The properties judge what a target does; they may rely on groups, blocks, steps and numbers that
are there. An answer that names others is garbage, as one of another type is.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvproof.harness.contract.target import (
    Completed,
    Inspection,
    Refused,
    Scheduled,
    StateUse,
    Table,
)
from kvproof.harness.errors import TargetDied
from kvproof.harness.oracle.state import OracleState

Copies = tuple[tuple[int, int, int], ...]

_NUMBERS = range(-(2**63), 2**63)
"""Legal token ids: fingerprints are of 64 bits."""


class Border:
    """Refuses answers that name what does not exist; each method raises TargetDied(`garbage`)."""

    def __init__(self, state: OracleState) -> None:
        self._state, self._layout = state, state.layout
        self._groups = range(len(self._layout.groups))
        self._blocks = range(state.config.num_blocks)

    def scheduled(self, verb: str, answer: Scheduled | Refused) -> None:
        """Judge the step that `admit` or `extend` has scheduled."""
        if isinstance(answer, Refused):
            return
        if answer.step in self._state.steps:
            _refuse(verb, f"step {answer.step}, which is scheduled already")
        if answer.hit and verb == "extend":
            _refuse(verb, f"hit={answer.hit}: only an admission takes tokens from the cache")
        if answer.copies:
            self._copied(verb, "copies", answer.copies)
        if answer.saves:
            self._copied(verb, "saves", answer.saves)
        self._grouped(verb, "moves", answer.moves)
        if answer.states or self._layout.states:
            self._used(verb, answer.states)

    def completed(self, step: int, answer: Completed) -> None:
        """Judge the end of a step."""
        if answer.step != step:
            _refuse("complete", f"step {answer.step}, asked to complete step {step}")

    def inspected(self, answer: Inspection) -> None:
        """Judge the reports of an inspection."""
        self._grouped("inspect", "moves", answer.moves)
        for event in answer.events:
            if not event.tokens:
                continue
            for token in (min(event.tokens), max(event.tokens)):
                if token not in _NUMBERS:
                    _refuse("inspect", f"token {token} in an event, beyond 64 bits")

    def _grouped(self, verb: str, field: str, copies: Copies) -> None:
        for copy in copies:
            if copy[0] not in self._groups:
                _refuse(verb, f"{field} {copy}: there are {len(self._groups)} groups")

    def _copied(self, verb: str, field: str, copies: Copies) -> None:
        self._grouped(verb, field, copies)
        for copy in copies:
            named = copy[1:] if copy[0] in self._layout.attention else ()
            if not all(block in self._blocks for block in named):
                _refuse(verb, f"{field} {copy}: there are {len(self._blocks)} blocks")

    def _used(self, verb: str, states: tuple[StateUse, ...]) -> None:
        groups = [use.group for use in states]
        if sorted(groups) != list(self._layout.states):
            expected = list(self._layout.states)
            _refuse(verb, f"states of the groups {groups}, one each of {expected} is needed")
        for use, ids in _written(states):
            if len(ids) != (parts := self._layout.parts(use.group)):
                _refuse(verb, f"a state of group {use.group} in {ids}, it fills {parts} blocks")


def _written(states: tuple[StateUse, ...]) -> Iterator[tuple[StateUse, Table]]:
    return ((use, ids) for use in states for _, ids in use.writes)


def _refuse(verb: str, problem: str) -> None:
    raise TargetDied("garbage", f"{verb} answered {problem}")
