"""Known failures of SGLang's Mooncake managers; the pages of the findings have the causes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kvproof.harness.contract.disaggregation_sides import Side
from kvproof.suites.framework.failed import Failed

_NO_STAGES = "non-MLA SWA hybrid models with pipeline parallelism yet"


class _Half(NamedTuple):
    """Keys or values of a layer."""

    layer: int
    values: bool


def staged_windows_share_layers(found: Failed) -> bool:
    """Each stage of a model with windows sends to the first layers, and the last one stays."""
    return "w" in _sides(found)[0].kinds and _predicted(found)


def staged_values_miss_their_layer(found: Failed) -> bool:
    """A stage whose layers do not divide the model's sends its values to other layers."""
    return "w" not in _sides(found)[0].kinds and _predicted(found)


def unlike_ranks_of_staged_windows_end_the_sender(found: Failed) -> bool:
    """The refusal comes when the first prompt is sent, and ends the thread that sends."""
    prefill, decode = _sides(found)
    unlike = prefill.ranks != decode.ranks and prefill.stages > 1 and "w" in prefill.kinds
    return unlike and _NO_STAGES in found.fact("error", str)


def _sides(found: Failed) -> tuple[Side, Side]:
    return Side(**found.config["prefill"]), Side(**found.config["decode"])


def _predicted(found: Failed) -> bool:
    """Whether the first wrong slot has what SGLang's pairing of pointers brings there."""
    prefill, decode = _sides(found)
    layer, head, position = found.fact("slot", tuple)
    kind = decode.kind(layer)
    if prefill.latent or kind == "s" or "s" in decode.kinds or prefill.stages == decode.stages:
        return False
    order = found.fact("prompt", dict)["order"]
    rank = found.fact("rank", int)
    held: dict[int, _Half] = {}
    for worker in order:
        if head in prefill.of_rank(worker) and _sends(prefill, decode, worker, rank):
            held.update(_writes(prefill, decode, worker, kind))
    own = _layers(decode, range(decode.layers), kind)
    keys, values = held.get(own.index(layer)), held.get(len(own) + own.index(layer))
    if (keys, values) == (_Half(layer, values=False), _Half(layer, values=True)):
        return False
    origin = found.violation.facts["origin"]
    if keys and values and not keys.values and values == _Half(keys.layer, values=True):
        return bool(origin == (keys.layer, head, position))
    return origin is None


def _sends(prefill: Side, decode: Side, worker: int, rank: int) -> bool:
    """Whether a prefilling worker sends to a decoding rank."""
    own = worker % prefill.ranks
    if prefill.ranks >= decode.ranks:
        return own // (prefill.ranks // decode.ranks) == rank
    return rank // (decode.ranks // prefill.ranks) == own


def _layers(side: Side, layers: range, kind: str) -> list[int]:
    return [layer for layer in layers if side.kind(layer) == kind]


def _writes(prefill: Side, decode: Side, worker: int, kind: str) -> Iterator[tuple[int, _Half]]:
    """Yield pointers of the decoding side, keys before values, and what a worker writes there."""
    stage = prefill.layers_of(worker)
    own, count = _layers(prefill, stage, kind), len(_layers(decode, range(decode.layers), kind))
    start = 0 if "w" in prefill.kinds or len(own) == count else stage.start
    border = count
    if own and len(own) < count and count % len(own):
        border = count // len(own) * len(own)
    for index, layer in enumerate(own):
        yield start + index, _Half(layer, values=False)
        yield border + start + index, _Half(layer, values=True)
