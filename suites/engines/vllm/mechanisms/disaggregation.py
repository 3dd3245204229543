"""Known failures of Nixl's workers in vLLM; the pages of the findings have the causes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from kvproof.harness.contract.disaggregation_sides import Side
from kvproof.suites.framework.failed import Failed, MissingFact

_SILENT = "AssertionError: "
_ROWS = ("BHLNC", "BLNHC")
"""Layouts in which all layers of a block are registered as one row."""


def blocks_are_paired_from_their_ends(found: Failed) -> bool:
    """The content is that of the token which stands there if both lists end at once.

    Or the decoding side's list is the longer one, and the step ends in an assertion.
    """
    prefill, decode = _sides(found)
    prompt = found.fact("prompt", dict)
    if prefill.context > 1 or decode.context > 1:
        return False
    if found.has("error"):
        kinds = {
            windowed: _lists(prefill, decode, prompt, windowed=windowed)
            for windowed in {False, "w" in decode.kinds}
        }
        equal = _unit(prefill) == _unit(decode)
        longer = any(mine.size > theirs.size for mine, theirs in kinds.values())
        return equal and longer and found.fact("error", str) == _SILENT
    windowed = decode.kind(found.fact("slot", tuple)[0]) == "w"
    return _paired(prefill, decode, prompt, windowed=windowed) != 0 and _predicted(found)


def unlike_rows_are_cut_by_bytes(found: Failed) -> bool:
    """A row of larger blocks is cut into equal parts, and each gets a row of smaller blocks."""
    prefill, decode = _sides(found)
    rows = decode.layout == prefill.layout and decode.layout in _ROWS
    return rows and _unit(prefill) != _unit(decode) and _predicted(found)


def context_ranks_pair_unlike_blocks(found: Failed) -> bool:
    """One side shares its blocks among ranks, and the other's have another size.

    The step ends, or a slot has the content of the kernel block that its own is paired with.
    """
    prefill, decode = _sides(found)
    if prefill.context == decode.context or prefill.block_size == decode.block_size:
        return False
    if found.has("error"):
        return found.fact("error", str) == _SILENT
    layer, head, position = found.fact("slot", tuple)
    origin = found.violation.facts["origin"]
    prompt = found.fact("prompt", dict)
    came = _from_ranks(prefill, decode, prompt, found.fact("rank", int), position)
    if came is None or came >= prompt["tokens"]:
        return origin is None
    return origin == (layer, head, came)


def heads_of_many_workers_are_refused_silently(found: Failed) -> bool:
    """The side that is read, or written to, has more workers than heads, and than the other."""
    acting, other = _sides(found)[:: 1 if _pushes(found) else -1]
    many = other.ranks > max(other.heads, acting.ranks)
    return many and not other.latent and found.fact("why", str) == _SILENT


def pushes_go_into_unlike_blocks(found: Failed) -> bool:
    """The side that decodes does after a push what belongs after a read.

    Its blocks are not multiples of the other's, or their kernel blocks are equal, and it looks for
    the other side's table.
    """
    prefill, decode = _sides(found)
    mine, theirs = _unit(decode), _unit(prefill)
    words = {
        True: "IndexError: tuple index out of range",
        False: f"AssertionError: Local block size {mine} is not divisible by remote block size "
        f"{theirs} or vice versa.",
    }
    unlike = mine < theirs or (mine == theirs and decode.block_size != prefill.block_size)
    return _pushes(found) and unlike and found.fact("error", str) == words[mine == theirs]


def _sides(found: Failed) -> tuple[Side, Side]:
    """Return both sides. Raises MissingFact for another connector."""
    if found.config.get("planner", "") == "mooncake":
        raise MissingFact("these are failures of Nixl's workers")
    return Side(**found.config["prefill"]), Side(**found.config["decode"])


def _pushes(found: Failed) -> bool:
    return bool(found.config.get("pushes"))


def _unit(side: Side) -> int:
    return side.kernel or side.block_size


class _List(NamedTuple):
    """The blocks that a side names, in blocks of the prefilling side's size."""

    start: int
    """Their first token."""
    size: int


def _lists(
    prefill: Side, decode: Side, prompt: Mapping[str, Any], *, windowed: bool = False
) -> tuple[_List, _List]:
    """Return the places that the decoding side misses, and those that the other one has."""
    missing = range(int(prompt["cached"]), len(prompt["decode"]))
    offered = range(len(prompt["prefill"]))
    if windowed:
        missing = range(max([missing.start, *_empty(prompt["windows"][1])]), missing.stop)
        missing = missing[-_kept(decode) :]
        offered = offered[-_kept(prefill) :]
    unit = _unit(prefill)
    return (
        _List(missing.start * decode.block_size, len(missing) * decode.block_size // unit),
        _List(offered.start * prefill.block_size, len(offered) * prefill.block_size // unit),
    )


def _empty(table: Sequence[int]) -> list[int]:
    """Return the places after blocks that lie before a window."""
    return [place + 1 for place, block in enumerate(table) if not block]


def _kept(side: Side) -> int:
    """Return how many blocks of a window are named."""
    return -(-side.window // side.block_size) + 1


def _counts(prefill: Side, decode: Side, prompt: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many blocks of the prefilling side's size both lists count."""
    mine, theirs = _lists(prefill, decode, prompt)
    return mine.size, theirs.size


def _paired(
    prefill: Side, decode: Side, prompt: Mapping[str, Any], *, windowed: bool = False
) -> int:
    """Return by how many tokens the content is off."""
    mine, theirs = _lists(prefill, decode, prompt, windowed=windowed)
    first = theirs.size - min(mine.size, theirs.size)
    return theirs.start + first * _unit(prefill) - mine.start


def _from_ranks(
    prefill: Side, decode: Side, prompt: Mapping[str, Any], worker: int, position: int
) -> int | None:
    """Return the position whose content comes to that of a decoding worker; None: nothing does.

    Blocks of both tables are matched by their numbers in the prompt, each side's in its own size;
    slots of the matched ones are paired in order, and those that are left get nothing. Slots beyond
    as many as one rank of the other side has are set to zero in the end.
    """
    own = worker % decode.context
    table = position // (decode.block_size * decode.context)
    _, offsets = decode.slots([0] * (table + 1), [position])
    inside = int(offsets[0])
    slot = (table - int(prompt["cached"])) * decode.block_size + inside
    if slot // _unit(prefill) >= _counts(prefill, decode, prompt)[1]:
        return None
    for rank in range(prefill.context):
        mine, theirs = _matched(prefill, decode, prompt, own, rank)
        if table in mine:
            slot = mine.index(table) * decode.block_size + inside
            index, offset = divmod(slot, prefill.block_size)
            return prefill.position(rank, theirs[index], offset) if index < len(theirs) else None
    return None


def _matched(
    prefill: Side, decode: Side, prompt: Mapping[str, Any], own: int, rank: int
) -> tuple[list[int], list[int]]:
    """Return the places in both tables of the blocks with equal numbers, as far as both have."""
    numbers = {place * prefill.context + rank: place for place in range(len(prompt["prefill"]))}
    wanted = [
        (place, numbers.get(place * decode.context + own))
        for place in range(prompt["cached"], len(prompt["decode"]))
    ]
    both = [(mine, theirs) for mine, theirs in wanted if theirs is not None]
    return [mine for mine, _ in both], [theirs for _, theirs in both]


def _predicted(found: Failed) -> bool:
    """Whether the first wrong slot has the content that vLLM's copies bring there."""
    prefill, decode = _sides(found)
    prompt = found.fact("prompt", dict)
    layer, head, position = found.fact("slot", tuple)
    if decode.layout in _ROWS and _unit(prefill) < _unit(decode):
        heads = decode.of_rank(found.fact("rank", int))
        block, offset = divmod(position, _unit(decode))
        cut = _cut(prefill, decode, len(heads), {"L": layer, "H": head - heads[0], "N": offset})
        layer, head = cut["L"], cut["H"] + heads[0]
        position = block * _unit(decode) + cut["N"]
    windowed = decode.kind(layer) == "w"
    position += _paired(prefill, decode, prompt, windowed=windowed)
    origin = found.violation.facts["origin"]
    first = prefill.first(prompt["tokens"]) if windowed else 0
    if not first <= position < prompt["tokens"]:
        return origin is None
    return origin == (layer, head, position)


def _cut(prefill: Side, decode: Side, heads: int, at: dict[str, int]) -> dict[str, int]:
    """Return whose content comes to a place of a row: its part is a row of a smaller block."""
    axes = [axis for axis in decode.layout if axis in at]
    sizes = {"L": decode.layers, "H": heads, "N": _unit(decode)}
    flat = 0
    for axis in axes:
        flat = flat * sizes[axis] + at[axis]
    parts = _unit(decode) // _unit(prefill)
    part, inside = divmod(flat, prod(sizes.values()) // parts)
    found = {}
    for axis in reversed(axes):
        size = _unit(prefill) if axis == "N" else sizes[axis]
        inside, found[axis] = divmod(inside, size)
    found["N"] += part * _unit(prefill)
    return found
