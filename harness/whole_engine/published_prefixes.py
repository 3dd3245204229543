"""Prompts as a router reads them from events: parents and tokens lead back to a beginning (W8)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kvproof.harness.model.records import CacheEvent
from kvproof.harness.whole_engine.device_requests import DeviceRequest
from kvproof.harness.whole_engine.findings import Findings

PREFIXES = "events_lead_back_to_a_requests_tokens"


class Group(NamedTuple):
    """A group of layers."""

    kind: str
    block_size: int


class PublishedPrefixes:
    """Every stored key with the tokens up to its end; no key is forgotten."""

    def __init__(
        self, findings: Findings, requests: Mapping[str, DeviceRequest], groups: Sequence[Group]
    ) -> None:
        self._findings, self._requests, self._groups = findings, requests, groups
        self._tokens: dict[str, tuple[int, ...]] = {"": ()}
        self._excused = False

    def adopt(self) -> None:
        """From now on, pass over blocks published with tokens of others, and parts of blocks."""
        self._excused = True

    def apply(self, events: Iterable[CacheEvent]) -> None:
        """Check the stored blocks of a step; the order of groups in a step is free."""
        own = (each for each in events if each.kind == "stored" and not each.tier)
        stored = [each for each in own if each.key and each.tokens]
        self._learn([each for each in stored if not each.beyond])
        for each in stored:
            part = len(each.tokens) < self._groups[each.group].block_size
            if not (self._excused and (each.beyond or part)):
                self._check(each)

    def _learn(self, left: list[CacheEvent]) -> None:
        """Take keys with their prefixes, as far as their parents are known."""
        while ready := [each for each in left if each.parent in self._tokens]:
            for each in ready:
                self._tokens[each.key] = self._tokens[each.parent] + each.tokens
                left.remove(each)

    def _check(self, event: CacheEvent) -> None:
        before = self._tokens.get(event.parent)
        own = (before or ()) + event.tokens
        right = (
            before is not None
            and not event.beyond
            and any(self._are(own, event, each) for each in self._requests.values())
        )
        self._findings.check(
            PREFIXES,
            right,
            lambda: (
                f"block {event.key[:12]} of group {event.group} is published behind "
                f"{event.parent[:12] or 'nothing'} with tokens {list(event.tokens)[:6]}.., adapter "
                f"{event.namespace.adapter}: "
                + ("its parent never was" if before is None else "no request begins so")
                + (f", {event.beyond} tokens of other blocks come with it" if event.beyond else "")
            ),
            facts={
                "beyond": event.beyond,
                "kind": self._groups[event.group].kind,
                "tokens": len(event.tokens),
                "orphan": before is None,
            },
        )

    @staticmethod
    def _are(tokens: Sequence[int], event: CacheEvent, request: DeviceRequest) -> bool:
        if request.request.namespace.adapter != event.namespace.adapter:
            return False
        chain, first = request.chain, request.request.embedded
        if len(tokens) > max(request.known, chain.prompt):
            return False
        chain.ensure(len(tokens))  # the last answer of an aborted request was not taken
        return chain.tokens[first : len(tokens)] == list(tokens[first:])
