"""The cache of states and its model, moved together: the base of the machine's verbs."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import Any

from kvproof.reference.core.checkpoint import Checkpoint
from kvproof.reference.core.lifecycle import IllegalMove
from kvproof.reference.states.state_cache import StateCache
from kvproof.reference.states.state_slots import SharedBlocks, SlotPool
from kvproof.suites.framework.component_suite import Config
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.recurrent_states.agreement import check_outcome
from kvproof.suites.reference.recurrent_states.memory import Ids, Memory, Pool
from kvproof.suites.reference.recurrent_states.model import (
    DONE,
    FORBIDDEN,
    GONE,
    LOOSE,
    REFUSED,
    Model,
)


class Pair:
    def __init__(self, config: Config, coverage: Coverage) -> None:
        self.coverage = coverage
        self.config = config
        self.shared = config["home"] == "shared"
        self.width: int = config["width"] if self.shared else 1
        self.pool = Pool(config["blocks"])
        rows: int = config["most_running"] + config["budget"]
        self.rows = (config["blocks"] if self.shared else rows) + 1
        blocks = SharedBlocks(
            self.width,
            allocate=self._make_room,
            free=self.pool.free.extend,
            room=lambda: len(self.pool.free),
        )
        most = 0 if self.shared else config["most_running"]
        self.cache = StateCache(
            blocks if self.shared else SlotPool(rows), most_running=most, on_evict=self._evicted
        )
        self.model = Model(config["blocks"] // self.width if self.shared else rows, most)
        self.texts: dict[str, str] = {}
        self.read: dict[str, int] = {}
        """Number of tokens of its text that a running request has read."""
        self.drafts: dict[str, list[Ids]] = {}
        self.checkpoints: list[Checkpoint] = []
        self.contents: list[str] = []
        """Text of each checkpoint's state."""
        self.in_flight: dict[int, Ids] = {}
        """Checkpoints whose copy has not landed, and its destination."""
        self.memory = Memory(coverage, self.width)
        self.evictions: list[tuple[int, object]] = []
        """(checkpoint, place) as reported by the present operation."""

    # --- memory ---

    def _make_room(self, count: int) -> array[int] | None:
        """Evict like a pool with one order for checkpoints and all else, or like one without."""
        while self.config["one_order"] and len(self.pool.free) < count and self.cache.evict_one():
            pass
        return self.pool.take(count)

    def settled(self, request: str) -> bool:
        """Whether a request runs and waits neither for a restore nor for a verification."""
        return (
            request in self.model.running
            and request not in self.model.restoring
            and request not in self.model.drafts
        )

    def row(self, request: str) -> Ids:
        """Return the row of a request."""
        return list(self.cache.running.get(request) or ())

    def state(self, request: str) -> str:
        return self.texts[request][: self.read[request]]

    def land(self, number: int) -> None:
        if number in self.in_flight:
            self.memory.write(self.in_flight.pop(number), self.contents[number])

    def check_own(self, request: str, prop: str = "rows_have_one_owner") -> None:
        """Check that the row of a request holds its own state."""
        self.memory.check(prop, self.row(request), self.state(request), f"request {request}")

    def owners(self) -> Iterator[tuple[str, Ids]]:
        """Yield all owners of rows by the cache's report; others than states first."""
        yield "something else", self.pool.held
        for request in sorted(self.model.running):
            yield f"request {request}", self.row(request)
        for request, drafts in self.drafts.items():
            yield from ((f"draft {i} of {request}", ids) for i, ids in enumerate(drafts, 1))
        for number, checkpoint in enumerate(self.checkpoints):
            if self.model.records[number].stage != GONE:
                yield f"checkpoint {number}", list(checkpoint.ids)

    # --- subject and model together ---

    def do(self, verb: str, *arguments: Any, **options: bool) -> str:
        """Make one move of a checkpoint in both; a forbidden one changes nothing."""
        loose = sum(record.stage == LOOSE for record in self.model.records)
        expected: str = getattr(self.model, verb)(*arguments, **options)
        left = sum(record.stage == LOOSE for record in self.model.records)
        self.coverage.event("a detached checkpoint goes", left < loose)
        given = [self.checkpoints[each] if isinstance(each, int) else each for each in arguments]
        place = arguments if verb == "publish" else ()
        move = getattr(self.cache, _NAMES.get(verb, verb))
        answer = self.attempt(lambda: move(*given, *place, **options))
        check_outcome(self, verb, expected, FORBIDDEN if answer == FORBIDDEN else DONE)
        return expected

    def attempt(self, call: Callable[[], Any]) -> Any:
        """Return the answer, FORBIDDEN if it raised, REFUSED for None."""
        try:
            answer = call()
        except IllegalMove:
            return FORBIDDEN
        return REFUSED if answer is None else answer

    def _evicted(self, checkpoint: Checkpoint) -> None:
        self.evictions.append((self.checkpoints.index(checkpoint), checkpoint.owner))

    def note(self) -> None:
        """Count situations that show in the state as a whole."""
        home = "blocks of the shared pool" if self.shared else "rows of a separate pool"
        self.coverage.event(f"states are {home}")
        several = any(len(record.pins) > 1 for record in self.model.records)
        self.coverage.event("one checkpoint has several pins", several)


_NAMES = {"pin": "pin_restore", "unpin": "unpin_restore", "saved": "unpin_save"}
"""The cache's name of a move, where the model has a shorter word."""
