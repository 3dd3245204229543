"""Outputs of the encoder of media, as the worker keeps them between steps (W2)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from kvproof.harness.contract.whole_engine import Row
from kvproof.harness.whole_engine.device_requests import DeviceRequest
from kvproof.harness.whole_engine.findings import Findings

ENCODED = "encoder_outputs_are_there_when_they_are_read"


@dataclass
class EncoderOutputs:
    """The contents with an output; a step frees some, then encodes others."""

    findings: Findings
    requests: Mapping[str, DeviceRequest]
    there: set[str] = field(default_factory=set)

    def step(self, freed: Collection[str], encoded: Mapping[str, Sequence[int]]) -> None:
        """Follow a step of the scheduler: contents that it frees, and request -> its media."""
        self.there -= set(freed)
        for name, places in encoded.items():
            media = self.requests[name].request.media
            self.there.update(media[place].content for place in places)

    def check(self, row: Row) -> None:
        """Check the outputs for the positions that a row computes."""
        end = row.start + len(row.tokens)
        read = [
            span.content
            for span in self.requests[row.request].request.media
            if span.start < end and span.start + span.length > row.start
        ]
        self.findings.saw("a launch computes positions of media", read)
        missing = [content for content in read if content not in self.there]
        self.findings.check(
            ENCODED,
            not missing,
            lambda: (
                f"{row.request} computes positions {row.start}..{end - 1}, and the worker has no "
                f"encoder output of {missing}"
            ),
        )
