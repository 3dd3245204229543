"""The course of a history: requests, launches and transfers over virtual time, as JSON.

It only keeps references while a history runs; `record` spells them out for a failure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

import numpy as np

from kvproof.harness.contract.whole_engine import EngineRequest, Row
from kvproof.harness.whole_engine.device import Launch, ShadowDevice
from kvproof.harness.whole_engine.memory import Pool
from kvproof.harness.whole_engine.transfers import Transfer

MOST_STEPS = 200
"""Steps before a failure that are spelled out."""


class Stay(TypedDict):
    """A status of a request; `last` is the last step that ended with it."""

    status: str
    first: int
    last: int


class Lane(TypedDict):
    """One request."""

    request: str
    about: str
    arrived: int
    ended: int
    """Step of its end; -1: it has not ended."""
    outcome: str
    spans: list[Stay]


@dataclass
class TimelineNotes:
    """One history; `device` has its clock."""

    device: ShadowDevice
    lanes: dict[str, Lane] = field(default_factory=dict)
    launches: list[Launch] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)
    operations: list[tuple[str, int, int]] = field(default_factory=list)
    """Verb, and the steps before and after it."""
    resets: list[int] = field(default_factory=list)

    def arrived(self, request: EngineRequest) -> None:
        """Note a new request."""
        self.lanes[request.id] = {
            "request": request.id,
            "about": _about(request),
            "arrived": self.device.tick,
            "ended": -1,
            "outcome": "",
            "spans": [],
        }

    def ended(self, name: str, outcome: str) -> None:
        """Note the end of a request."""
        lane = self.lanes[name]
        lane["ended"], lane["outcome"] = self.device.tick, outcome

    def stepped(self, statuses: Mapping[str, str]) -> None:
        """Note the statuses after a step, and the launches and transfers submitted during it."""
        tick = self.device.tick
        for name, status in statuses.items():
            spans = self.lanes[name]["spans"] if name in self.lanes else []
            if spans and spans[-1]["status"] == status and spans[-1]["last"] == tick - 1:
                spans[-1]["last"] = tick
            else:
                spans.append({"status": status, "first": tick, "last": tick})
        self.launches += self.device.recent
        self.transfers += self.device.transfers.recent
        self.device.transfers.recent.clear()

    def record(self, slots: Sequence[Mapping[str, Any]], failed: int) -> dict[str, Any]:
        """Return the last steps before a failure as JSON."""
        pools = self.device.memory.pools
        since = max(0, failed - MOST_STEPS)
        launches = [*self.launches, *self.device.recent]
        transfers = [*self.transfers, *self.device.transfers.recent]
        return {
            "failed": failed,
            "since": since,
            "block_size": pools[0].block_size,
            "groups": [str(pool.visibility) for pool in pools],
            "operations": [list(each) for each in self.operations],
            "resets": self.resets,
            "requests": list(self.lanes.values()),
            "launches": [
                _launch(each, pools) for each in launches if each.rows and each.tick >= since
            ],
            "transfers": [_transfer(each) for each in transfers if each.tick >= since],
            "slots": list(slots),
        }


def _about(request: EngineRequest) -> str:
    parts = [f"prompt of {len(request.prompt)}, {request.answers} answers"]
    if request.salt:
        parts.append(f"salt {request.salt!r}")
    if request.adapter:
        parts.append(f"adapter {request.adapter!r}, version {request.adapter_version}")
    if request.media:
        parts.append("media " + ", ".join(each.content for each in request.media))
    if request.priority:
        parts.append(f"priority {request.priority}")
    return "; ".join(parts)


def _launch(launch: Launch, pools: Sequence[Pool]) -> dict[str, Any]:
    return {
        "number": launch.number,
        "submitted": launch.tick,
        "executed": launch.ran,
        "rows": [_row(row, pools) for row in launch.rows],
    }


def _row(row: Row, pools: Sequence[Pool]) -> dict[str, Any]:
    stop = row.start + len(row.tokens)
    return {
        "request": row.request,
        "start": row.start,
        "stop": stop,
        "samples": row.samples,
        "drafts": row.drafts,
        "hit": row.start if row.fresh else 0,
        "reads": [_blocks(row, group, pool, read=True) for group, pool in enumerate(pools)],
        "writes": [_blocks(row, group, pool, read=False) for group, pool in enumerate(pools)],
    }


def _blocks(row: Row, group: int, pool: Pool, *, read: bool) -> list[int]:
    """Return the blocks that a row reads or writes, as its kernel table has them."""
    table, start, stop = row.groups[group].table, row.start, row.start + len(row.tokens)
    rule = pool.visibility
    touched = rule.read_by(start, stop) if read else rule.written_by(start, stop)
    positions = np.array(touched, np.int64)
    places = positions // pool.kernel_block_size
    blocks = table[places[places < len(table)]] * pool.kernel_block_size // pool.block_size
    return list(dict.fromkeys(blocks.tolist()))


def _transfer(transfer: Transfer) -> dict[str, Any]:
    return {
        "number": transfer.number,
        "stream": transfer.stream,
        "submitted": transfer.tick,
        "ended": transfer.ended,
        "reads": _ids(transfer.reads),
        "writes": _ids(transfer.writes),
    }


def _ids(blocks: Iterable[int]) -> list[int]:
    return [int(each) for each in blocks]
