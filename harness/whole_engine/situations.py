"""Situations of a history: a property that never met its subject has not been judged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kvproof.harness.contract.whole_engine import EngineRequest
from kvproof.harness.whole_engine.findings import Findings


class Sightings:
    """Looks at requests, statuses and launches as they come."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._before: Mapping[str, str] = {}
        self._rows: dict[str, int] = {}
        self._launches = 0
        self.reset_done = False

    def submitted(self, request: EngineRequest, others: Iterable[EngineRequest]) -> None:
        """Compare a new request with all earlier ones."""
        saw = self._findings.saw
        for other in others:
            if other is request or other.prompt[:16] != request.prompt[:16]:
                continue
            same = other.namespace == request.namespace
            saw("equal beginnings in two namespaces", not same)
            saw("equal beginnings in one namespace", same)
            saw("equal beginnings as tokens and embeddings", other.embeds != request.embeds)
            saw("equal beginnings as embeddings", other.embeds and request.embeds)
            saw("equal placeholders with unlike media", _unlike(request, other))
        saw("a request comes after a change of weights", self.reset_done)

    def stepped(self, statuses: Mapping[str, str], device: Any) -> None:
        """Look at the state after a step."""
        saw = self._findings.saw
        for name, status in statuses.items():
            saw("a request is preempted", status == "preempted" != self._before.get(name))
        self._before = statuses
        for launch in device.recent:
            self._launched(launch.rows)
        device.recent.clear()

    def _launched(self, rows: Iterable[Any]) -> None:
        saw = self._findings.saw
        for row in rows:
            again = row.request in self._rows
            saw("a request hits", row.fresh and not again and row.start)
            saw("a request goes on after a preemption", row.fresh and again)
            saw("a prompt is computed in chunks", not row.samples)
            saw("drafts are verified", row.drafts)
            self._rows[row.request] = self._rows.get(row.request, 0) + 1


def _unlike(request: EngineRequest, other: EngineRequest) -> bool:
    places = [(item.start, item.length) for item in request.media]
    theirs = [(item.start, item.length) for item in other.media]
    return bool(places) and places == theirs and request.media != other.media
