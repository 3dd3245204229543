"""Messages between a fault run and the process of one fault: JSON lines."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from kvproof.harness.records.fault_events import FaultJudged
from kvproof.suites.faults.catalogue import PlantedFault


class Job(msgspec.Struct, frozen=True):
    """One fault to judge."""

    fault: PlantedFault
    budget: str
    seed: int | None
    directory: str
    alone: bool = False
    """Whether only the property that the catalogue names may find it."""
    reach: str = ""
    """A record of executed lines; empty: every suite runs."""


class Progress(msgspec.Struct, frozen=True, tag_field="event", tag="said"):
    """Progress of a suite."""

    suite: str
    done: int


Line: TypeAlias = Progress | FaultJudged

read_job = msgspec.json.Decoder(Job).decode
read_line = msgspec.json.Decoder(Line).decode
