"""Compares the cache of states with its model, and names the property that a difference breaks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Protocol

from kvproof.reference.core.checkpoint import Checkpoint
from kvproof.reference.states.state_cache import StateCache
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.recurrent_states.memory import Ids
from kvproof.suites.reference.recurrent_states.model import (
    DONE,
    FORBIDDEN,
    GONE,
    HUNG,
    REFUSED,
    Model,
    Record,
)

_OUTCOMES = {
    ("acquire", DONE): "a_running_request_gets_its_row_back",
    ("acquire", REFUSED): "requests_wait_only_for_pinned_checkpoints",
    ("reserve", DONE): "checkpoints_borrow_idle_rows",
    ("reserve", REFUSED): "pinned_checkpoints_stay",
    ("acquire_drafts", DONE): "rejected_drafts_leave_no_rows",
    ("acquire_drafts", REFUSED): "rejected_drafts_leave_no_rows",
    ("evict_one", DONE): "the_least_recent_checkpoint_goes",
    ("evict_one", REFUSED): "pinned_checkpoints_stay",
}
"""(verb, expected outcome) -> property that a difference breaks."""


class Compared(Protocol):
    coverage: Coverage
    cache: StateCache
    model: Model
    shared: bool
    rows: int
    checkpoints: list[Checkpoint]
    evictions: list[tuple[int, object]]

    def owners(self) -> Iterator[tuple[str, Ids]]:
        """Yield the owners of rows, by the report of the cache; others than states first."""


def check_outcome(machine: Compared, verb: str, expected: str, found: str) -> None:
    """Compare done, refused, forbidden."""
    prop = _OUTCOMES.get((verb, expected), "allowed_moves_are_made")
    if expected == FORBIDDEN:
        prop = "forbidden_moves_raise"
    machine.coverage.equal(prop, found, expected, f"{verb} is")
    machine.coverage.event(f"forbidden: {verb}", expected == FORBIDDEN)
    if verb == "acquire" and expected == REFUSED:
        _note_waiting(machine)


def _note_waiting(machine: Compared) -> None:
    """A request may also wait for rows of running requests, or of other users."""
    model = machine.model
    full = bool(model.most_running) and len(model.running) == model.most_running
    pinned = any(record.pins for record in model.records)
    machine.coverage.event("a request waits: no more may run", full)
    machine.coverage.event("a request waits: only pinned checkpoints are left", pinned and not full)


def check_replaced(
    machine: Compared, reported: list[tuple[int, object]], expected: list[int]
) -> None:
    """Check the eviction by a new checkpoint: the one that it replaces, or nothing."""
    found = [number for number, _ in reported]
    machine.coverage.equal(
        "one_replaceable_checkpoint_per_request", found, expected, "publishing evicts"
    )
    machine.coverage.event("a decode checkpoint is replaced", expected)


def check_evictions(machine: Compared, verb: str) -> None:
    """Compare the evictions, their order, and their reports to the index."""
    found = [number for number, _ in machine.evictions]
    expected = machine.model.evicted
    silent = "evictions_are_reported_once"
    if found or expected:
        prop = silent if len(found) < len(expected) else "the_least_recent_checkpoint_goes"
        machine.coverage.equal(prop, found, expected, f"{verb} evicts")
    wrong = [(number, place) for number, place in machine.evictions if place != number]
    if found:
        machine.coverage.check(
            silent, not wrong, lambda: f"{verb} evicts from wrong places: {wrong}"
        )
    older = min(machine.model.order, default=len(machine.checkpoints))
    machine.coverage.event("a checkpoint is evicted", found)
    machine.coverage.event(
        "the first to be saved is not the first to go", found and older < min(found)
    )


def check_records(machine: Compared, verb: str) -> None:
    """Compare every checkpoint's state, and the next victim."""
    for number, record in enumerate(machine.model.records):
        _check_record(machine, verb, number, record)
    oldest = machine.cache.oldest()
    first = None if oldest is None else machine.checkpoints.index(oldest)
    expected = machine.model.order[0] if machine.model.order else None
    to_go = f"after {verb}, the next to go is"
    machine.coverage.equal("the_least_recent_checkpoint_goes", first, expected, to_go)


def _check_record(machine: Compared, verb: str, number: int, record: Record) -> None:
    found = machine.checkpoints[number]
    prop = _blame(verb, gone=record.stage == GONE, pinned=bool(record.pins))
    state = f"after {verb}, checkpoint {number} is"
    machine.coverage.equal(prop, found.status, record.status, state)
    if record.stage == HUNG:
        prop = "one_replaceable_checkpoint_per_request"
        machine.coverage.equal(prop, found.replaceable, record.decode, f"{state} replaceable:")


def _blame(verb: str, *, gone: bool, pinned: bool) -> str:
    if verb == "release":
        return "reservations_end_with_their_request" if gone else "restores_end_with_their_request"
    return "pinned_checkpoints_stay" if pinned else "allowed_moves_are_made"


def check_rows(machine: Compared) -> None:
    """Each row has one owner, and the free ones are counted."""
    owners = list(machine.owners())
    count = Counter(row for _, ids in owners for row in ids)
    wrong = [row for row in count if count[row] > 1 or not 0 < row < machine.rows]
    machine.coverage.check(
        "rows_have_one_owner",
        not wrong,
        lambda: f"rows {wrong} are not there or have several owners: {owners}",
    )
    free = machine.cache.home.num_free
    machine.coverage.equal("rows_have_one_owner", free, machine.model.free, "free states:")
    _, *states = owners
    spread = any(max(ids) - min(ids) >= len(ids) for _, ids in states if ids)
    machine.coverage.event("one state has blocks that are no neighbours", machine.shared and spread)
