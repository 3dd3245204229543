"""The property that a wrong read breaks, found by the content that the slot holds instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from kvproof.harness.model.fingerprints import epoch_key
from kvproof.harness.whole_engine.device_requests import HALF, DeviceRequest, Work
from kvproof.harness.whole_engine.failed_loads import LOST, SPOILED
from kvproof.harness.whole_engine.memory import DeviceMemory, Layer, Marks

READS = "reads_return_own_content"
RECEIVED = "received_blocks_hold_the_requests_own_content"
STATES = "states_are_of_exactly_the_tokens_read"
NAMESPACES = "namespaces_are_separate"
MEDIA = "spans_are_separate"
EPOCHS = "no_hit_across_epochs"
DRAFTS = "only_accepted_drafts_stay"
REUSED = "a_running_step_keeps_its_blocks"
LOST_BLOCK = "the block's load had failed"
FROM_LOST = "it was computed from a block whose load had failed"
HALF_ENTRY = "its entry began before the hit ended, and its first tokens were not computed again"
_EPOCHS = 16
"""Changes of weights after which older content is not distinguished."""


class Cause(NamedTuple):
    """A property, and the content of the slot."""

    property: str
    sentence: str


def cause(
    found: int,
    work: Work,
    memory: DeviceMemory,
    requests: Mapping[str, DeviceRequest],
    *,
    marks: Marks,
    layer: Layer,
    block: int,
    launch: int,
    epoch: int,
) -> Cause:
    """Return why a slot of a row holds a fingerprint that is not its own."""
    why = _cause(
        found, work, memory, requests,
        marks=marks, layer=layer, block=block, launch=launch, epoch=epoch,
    )  # fmt: skip
    if block and marks.received[block] and why.property in (READS, DRAFTS, MEDIA, NAMESPACES):
        return Cause(RECEIVED, f"the block came from another engine; {why.sentence}")
    return why


def _cause(
    found: int,
    work: Work,
    memory: DeviceMemory,
    requests: Mapping[str, DeviceRequest],
    *,
    marks: Marks,
    layer: Layer,
    block: int,
    launch: int,
    epoch: int,
) -> Cause:
    if not found:
        return Cause(READS, "nothing was written there, or its halves disagree")
    if not block:
        return Cause(READS, "it is the null block")
    for writer, position in _writers(found, requests):
        return _by(writer, position, work)
    if found == LOST:
        return Cause(READS, LOST_BLOCK)
    if _holds(found ^ SPOILED, requests):
        return Cause(READS, FROM_LOST)
    if layer.entry > 1 and _holds(found ^ HALF, requests):
        return Cause(READS, HALF_ENTRY)
    now = epoch_key(epoch)
    if any(_holds(found ^ now ^ epoch_key(other), requests) for other in range(_EPOCHS)):
        return Cause(EPOCHS, "it was computed with other weights")
    for other in (each for pool in memory.pools for each in pool.layers):
        if other.salt != layer.salt and _holds(found ^ layer.salt ^ other.salt, requests):
            return Cause(READS, f"it is content of {other.content or other.name}")
    if (last := marks.written[block]) > launch:
        return Cause(REUSED, f"launch {last} wrote it before launch {launch} ran")
    return Cause(DRAFTS, "what was computed there was a draft, or follows one")


def _writers(
    found: int, requests: Mapping[str, DeviceRequest]
) -> Iterator[tuple[DeviceRequest, int]]:
    for each in requests.values():
        prints = each.chain.prints[: len(each.chain.tokens)]
        for position in np.flatnonzero(prints == np.uint64(found)):
            yield each, int(position)


def _holds(found: int, requests: Mapping[str, DeviceRequest]) -> bool:
    return next(_writers(found, requests), None) is not None


def _by(writer: DeviceRequest, position: int, work: Work) -> Cause:
    """Name the difference between the writer's content and the reader's."""
    theirs, own = writer.request, work.request.request
    holds = f"it holds position {position} of {theirs.id}"
    same = work.request.chain.tokens[: position + 1] == writer.chain.tokens[: position + 1]
    if same and theirs.namespace != own.namespace:
        return Cause(NAMESPACES, f"{holds}, of {theirs.namespace}")
    if same and theirs.media != own.media:
        return Cause(MEDIA, f"{holds}, with media {[item.content for item in theirs.media]}")
    return Cause(READS, holds)
