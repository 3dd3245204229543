"""Prompts as a router reads them from events: parents and tokens lead back to a beginning (W8)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from kvproof.harness.model.records import CacheEvent
from kvproof.harness.whole_engine.device_requests import DeviceRequest
from kvproof.harness.whole_engine.findings import Findings

PREFIXES = "events_lead_back_to_a_requests_tokens"

Requests = Callable[[], Iterable[DeviceRequest]]


class PublishedPrefixes:
    """Every stored key with the tokens up to its end; a router never forgets a key here."""

    def __init__(self, findings: Findings, requests: Requests) -> None:
        self._findings, self._requests = findings, requests
        self._tokens: dict[str, tuple[int, ...]] = {"": ()}

    def apply(self, events: Iterable[CacheEvent]) -> None:
        """Check the stored blocks of a step; the order of groups in a step is free."""
        stored = [each for each in events if each.kind == "stored" and not each.tier and each.tokens]
        left = list(stored)
        while ready := [each for each in left if each.parent in self._tokens]:
            for each in ready:
                self._tokens[each.key] = self._tokens[each.parent] + each.tokens
                left.remove(each)
        for each in stored:
            self._check(each, orphan=each in left)

    def _check(self, event: CacheEvent, *, orphan: bool) -> None:
        own = () if orphan else self._tokens[event.key]
        self._findings.check(
            PREFIXES,
            not orphan and any(self._are(own, event, each) for each in self._requests()),
            lambda: (
                f"block {event.key[:12]} of group {event.group} is published behind "
                f"{event.parent[:12] or 'nothing'} with tokens {list(event.tokens)[:6]}.., adapter "
                f"{event.namespace.adapter}: "
                + ("its parent was never published" if orphan else f"no request begins so: {own}")
            ),
        )

    @staticmethod
    def _are(tokens: Sequence[int], event: CacheEvent, request: DeviceRequest) -> bool:
        if request.request.namespace.adapter != event.namespace.adapter:
            return False
        chain, first = request.chain, request.request.embedded
        if len(tokens) > max(request.known, chain.prompt):
            return False
        return chain.tokens[first : len(tokens)] == list(tokens[first:])
