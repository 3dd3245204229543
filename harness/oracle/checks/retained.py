"""Checks of what a manager keeps in memory when requests have ended (T4)."""

from __future__ import annotations

from kvproof.harness.contract import operations as ops
from kvproof.harness.contract.target import Inspection, Refused, Retained
from kvproof.harness.oracle.state import OracleState, Step
from kvproof.harness.oracle.violation import INVARIANT, fail

_KEPT = "only_what_is_cached_is_kept"


class RetainedChecks:
    """Compares what an index keeps with the cached blocks, and records with running requests."""

    def __init__(self, state: OracleState) -> None:
        self._state = state
        self._full = bool(state.layout.full)
        self._refused: set[str] = set()
        """Requests that found no space and have not come back: they wait."""

    def run(self, found: Inspection) -> None:
        """Nothing is kept for longer than it is of use, and nothing is forgotten before."""
        if found.retained is None:
            return
        state, kept = self._state, found.retained
        if self._full:
            least = state.cached_tokens()
            self._within(
                kept.tokens, (least, self._most(least)), "tokens", "tokens of cached blocks"
            )
        elif state.profile.index == "tree" and not (state.layout.attention or state.pins):
            self._before_states(kept.tokens)
        self._wait()
        least = len(state.live) + len(state.pins)
        most = (
            least
            + len(self._refused)
            + len({id(step.live) for step in state.steps.values() if self._left(step)})
        )
        self._within(kept.requests, (least, most), "records of requests", "requests and pins")
        if self._full and kept.namespaces is not None:
            self._namespaces(kept)
        self._rows(kept)

    def _before_states(self, kept: int) -> None:
        """Tokens are of use that lead to a cached state or belong to a request."""
        state, unit = self._state, self._state.layout.unit
        least = state.model.units_before_states()
        owners = {id(each): each for each in state.live.values()}
        owners |= {id(step.live): step.live for step in state.steps.values()}
        most = least.union(*(state.model.path(e.prints, len(e.prints)) for e in owners.values()))
        bounds = (unit * len(least), unit * len(most))
        self._within(kept, bounds, "tokens", "tokens before cached states")

    def _rows(self, kept: Retained) -> None:
        """Rows that are missing are judged where they are read."""
        state = self._state
        if self._full and kept.expert_rows is not None:
            rows = state.model.expert_rows()
            self._within(kept.expert_rows, (0, rows), "expert rows", "rows of cached units")
        if state.layout.separate and kept.state_rows is not None:
            rows = state.config.state_rows - 1 - state.free_rows()
            self._within(kept.state_rows, (0, rows), "state rows", "states and checkpoints")

    def _most(self, least: int) -> int:
        """Where duplicates are kept, each may have a key of its own, or all of a content share one.

        So a higher bound from below would accuse an index by content.
        """
        state, first = self._state, self._state.layout.full[0]
        if state.profile.duplicates == "shared":
            return least
        size = state.layout.groups[first].block_size
        return max(least, size * sum(e.group == first for e in state.model.cached.values()))

    def _wait(self) -> None:
        operation, answer = self._state.history[-1]
        if isinstance(operation, ops.Admit):
            waits = isinstance(answer, Refused) and answer.reason == "no_space"
            (self._refused.add if waits else self._refused.discard)(operation.request.id)

    def _left(self, step: Step) -> bool:
        """Whether the request of a step was released while the step was in flight."""
        return self._state.live.get(step.live.request.id) is not step.live

    def _namespaces(self, kept: Retained) -> None:
        """A namespace stays as long as something of it is cached or running, and no longer."""
        state = self._state
        idle = not (state.live or state.pins or state.steps)
        if idle or state.model.cached:
            full, known = state.layout.full, state.model.cached.values()
            least = int(any(entry.group in full and not entry.tail for entry in known))
            most = kept.namespaces or 0 if state.model.cached or state.model.rows else 0
            found = kept.namespaces or 0
            self._within(found, (least, most), "namespaces", "namespaces with cached blocks")

    def _within(self, found: int, allowed: tuple[int, int], what: str, of_use: str) -> None:
        least, most = allowed
        self._state.checks[_KEPT] += 1
        if not least <= found <= most:
            expected = least if least == most else f"{least} to {most}"
            sentence = f"{found} {what} are kept in memory, there are {expected} {of_use}"
            fail(self._state, _KEPT, INVARIANT, sentence, facts={"kept": found, "least": least})
