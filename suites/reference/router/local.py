"""The reference's router for the suite's calls."""

from __future__ import annotations

from typing import Any

from kvproof.harness.contract.router_index import RouterIndex, answered
from kvproof.reference.router.router import Message, Router, Worker
from kvproof.reference.router.worker_blocks import Cleared, Event, Removed, Stored
from kvproof.suites.framework.component_suite import Arguments


def ask(*calls: tuple[str, Arguments]) -> list[Any]:
    """Carry calls out on one router of this process."""
    answers: list[Any] = answered({"calls": calls}, {}, LocalRouter)["answers"]
    return answers


class LocalRouter:
    """The reference's router."""

    def __init__(self, tiers: int, router: Router | None = None) -> None:
        self._tiers = tiers
        self._router = router or Router(tiers)

    def receive(self, worker: tuple[int, int], message: dict[str, Any]) -> list[int]:
        events = tuple(map(_event, message["events"]))
        sent = Message(message["start"], message["number"], events, message["whole"])
        missing = self._router.receive(Worker(*worker), sent)
        return [missing[0], missing[-1]] if missing else []

    def leave(self, name: int, start: int) -> None:
        self._router.leave(name, start)

    def copied(self) -> RouterIndex:
        return LocalRouter(self._tiers, Router(self._tiers, self._router.snapshot()))

    def offers(self, prompt: list[int]) -> list[list[Any]]:
        return [[*worker, [*run]] for worker, run in self._router.offers(prompt).items()]


def _event(event: list[Any]) -> Event:
    kind, *values = event
    if kind == "stored":
        parent, blocks, tier = values
        return Stored(parent, tuple((key, content) for key, content in blocks), tier)
    if kind == "removed":
        return Removed(tuple(values[0]), values[1])
    return Cleared("all" if values[0] is None else values[0])
