"""Known failures of Mooncake's workers in vLLM; the pages of the findings have the causes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kvproof.harness.contract.disaggregation_sides import Side
from kvproof.suites.framework.failed import Failed

_FEWER = "P num blocks less than D"
_LONGER = "Destination transfer region exceeds remote KV block size."
_BEYOND = "Mooncake transfer engine returned -1"
_WITHIN = "LBNHC"


def pulled_latent_blocks_are_not_compared(found: Failed) -> bool:
    """Blocks of unlike sizes are paired by their number, each from its first token on."""
    lists = _Lists.of(found)
    unlike = lists.prefill.block_size != lists.decode.block_size
    alike = lists.parts(lists.prefill) == lists.parts(lists.decode)
    return unlike and alike and lists.prefill.latent and _predicted(found, lists)


def pulled_blocks_count_in_the_senders_parts(found: Failed) -> bool:
    """The numbers of the decoding side's blocks are multiplied by the sender's kernel blocks.

    Lengths are compared, and blocks counted, whatever the context ranks are.
    """
    lists = _Lists.of(found)
    prefill, decode = lists.prefill, lists.decode
    alike = lists.parts(prefill) == lists.parts(decode)
    if lists.planner != "mooncake" or alike or "s" in decode.kinds:
        return False
    if found.has("error"):
        reasons = [each for kind in {*decode.kinds} for each in _lengths(found, lists, kind)]
        return any(each in found.fact("error", str) for each in reasons)
    origin, due = found.violation.facts["origin"], _written(found, lists)
    if isinstance(origin, tuple):
        return (origin[0], origin[2]) == due
    return due is None


def _lengths(found: Failed, lists: _Lists, kind: str) -> tuple[str, ...]:
    """Return why vLLM ends such a transfer, by the layers of a kind."""
    sent, wanted = _listed(found, kind)
    if len(sent) < len(wanted):
        return (_FEWER,)
    if lists.unit(lists.prefill) > lists.unit(lists.decode):
        return (_LONGER,)
    parts, there = lists.parts(lists.prefill), lists.parts(lists.decode)
    kinds = len(lists.decode.kinds)
    last = (max(wanted, default=0) * kinds + lists.decode.kinds.index(kind) + 1) * parts
    return (_BEYOND,) if last > lists.decode.blocks * kinds * there else ()


def _listed(found: Failed, kind: str) -> tuple[list[int], list[int]]:
    """Return places in the sender's table, and the blocks that the decoding side asks for."""
    prompt: Mapping[str, Any] = found.fact("prompt", dict)
    theirs, own = prompt["windows"] if kind == "w" else (prompt["prefill"], prompt["decode"])
    sent = [place for place, block in enumerate(theirs) if block or kind == "f"]
    return sent, [block for block in own[prompt["cached"] :] if block or kind == "f"]


def _written(found: Failed, lists: _Lists) -> tuple[int, int] | None:
    """Return the layer and token whose content is written to the first wrong slot; None: none is.

    Layers of unlike kinds take turns in one pool, each with blocks of its own.
    """
    prefill, decode = lists.prefill, lists.decode
    kinds, tokens = len(decode.kinds), found.fact("prompt", dict)["tokens"]
    layer, (block, _, offset) = found.fact("slot", tuple)[0], found.fact("place", tuple)
    part, inside = divmod(offset, lists.unit(decode))
    there = (block * kinds + layer % kinds) * lists.parts(decode) + part
    pairs = [
        each for turn in range(kinds) for each in _pairs(found, lists, turn) if each[0] == there
    ]
    if not pairs or inside >= lists.unit(prefill):
        return None
    _, turn, place, part = pairs[-1]
    sender = found.fact("rank", int) % decode.ranks * prefill.ranks // decode.ranks
    token = prefill.position(sender, place, part * lists.unit(prefill) + inside)
    start = prefill.first(tokens) if decode.kinds[turn] == "w" else 0
    return (layer - layer % kinds + turn, token) if start <= token < tokens else None


def _pairs(found: Failed, lists: _Lists, turn: int) -> list[tuple[int, int, int, int]]:
    """Return where the copies of a kind go, and whose they are.

    A copy is its kernel block in the pool, the kind's number, the place of a block in the sender's
    table, and the part of that.
    """
    kinds, parts = lists.decode.kinds, lists.parts(lists.prefill)
    sent, wanted = _listed(found, kinds[turn])
    first = len(sent) - len(wanted)
    return [
        ((block * len(kinds) + turn) * parts + part, turn, sent[first + at], part)
        for at, block in enumerate(wanted)
        for part in range(parts)
    ]


def pulled_context_ranks_are_not_compared(found: Failed) -> bool:
    """Context ranks are taken for workers that have all tokens of a block."""
    lists = _Lists.of(found)
    alike = lists.prefill.block_size == lists.decode.block_size
    parts = lists.parts(lists.prefill) == lists.parts(lists.decode)
    shared = lists.prefill.context != lists.decode.context
    return alike and parts and shared and _predicted(found, lists)


def pulled_heads_lie_within_tokens(found: Failed) -> bool:
    """Heads are cut out of a kernel block, and put into one, as if they lay outermost there."""
    lists = _Lists.of(found)
    prefill, decode = lists.prefill, lists.decode
    alike = prefill.block_size == decode.block_size and lists.unit(prefill) == lists.unit(decode)
    inner = _WITHIN in (prefill.layout, decode.layout)
    if lists.planner != "mooncake" or prefill.latent or found.has("error") or not (alike and inner):
        return False
    layer, head, position = found.fact("slot", tuple)
    kind, tokens = decode.kind(layer), found.fact("prompt", dict)["tokens"]
    came, at = _cut(lists, found.fact("rank", int), head, position)
    start = prefill.first(tokens) if kind == "w" else 0
    origin = (layer, came, at) if start <= at < tokens else None
    return kind != "s" and found.violation.facts["origin"] == origin != (layer, head, position)


def _cut(lists: _Lists, rank: int, head: int, position: int) -> tuple[int, int]:
    """Return the head and the token whose content comes to a slot of a decoding worker."""
    unit, own = lists.unit(lists.decode), lists.decode.of_rank(rank)
    first, offset = position - position % unit, position % unit
    row, place = own.index(head), offset
    if lists.decode.layout == _WITHIN:
        row, place = divmod(offset * len(own) + row, unit)
    ranks = range(lists.prefill.ranks)
    theirs = next(each for each in map(lists.prefill.of_rank, ranks) if own[row] in each)
    row = theirs.index(own[row])
    if lists.prefill.layout == _WITHIN:
        place, row = divmod(row * unit + place, len(theirs))
    return theirs[row], first + place


class _Lists(NamedTuple):
    """The blocks of a prompt that both sides list."""

    planner: str
    prefill: Side
    decode: Side
    sent: int
    """Blocks of the side that prefills."""
    missing: int
    """Blocks that the other side wants."""

    @classmethod
    def of(cls, found: Failed) -> _Lists:
        """Return those of a failure."""
        prompt: Mapping[str, Any] = found.fact("prompt", dict)
        return cls(
            found.config.get("planner", ""),
            Side(**found.config["prefill"]),
            Side(**found.config["decode"]),
            len(prompt["prefill"]),
            len(prompt["decode"]) - prompt["cached"],
        )

    @staticmethod
    def unit(side: Side) -> int:
        """Return the tokens of a kernel block."""
        return side.kernel or side.block_size

    @staticmethod
    def parts(side: Side) -> int:
        """Return the kernel blocks of a block."""
        return side.block_size // _Lists.unit(side)


def _predicted(found: Failed, lists: _Lists) -> bool:
    """Whether a failure is that of lists which are paired from their ends, block by block."""
    if lists.planner != "mooncake":
        return False
    if found.has("error"):
        return any(each in found.fact("error", str) for each in _reasons(lists))
    origin, due = found.violation.facts["origin"], _origin(found, lists)
    if due is None or due >= found.fact("prompt", dict)["tokens"]:
        return origin is None
    return isinstance(origin, tuple) and bool(origin[2] == due)


def _reasons(lists: _Lists) -> tuple[str, ...]:
    """Return why vLLM ends such a transfer."""
    if lists.sent < lists.missing:
        return (_FEWER,)
    return (_LONGER,)


def _origin(found: Failed, lists: _Lists) -> int | None:
    """Return the token whose content comes to the first wrong slot; None: none comes to it."""
    prefill, decode, position = lists.prefill, lists.decode, found.fact("slot", tuple)[2]
    blocks, offsets = decode.slots(range(position + 1), [position])
    missing = int(blocks[0]) - found.fact("prompt", dict)["cached"]
    part, inside = divmod(int(offsets[0]), lists.unit(decode))
    if inside >= lists.unit(prefill):
        return None
    block, part = divmod(missing * lists.parts(decode) + part, lists.parts(prefill))
    offset = part * lists.unit(prefill) + inside
    sender = found.fact("rank", int) % decode.ranks * prefill.ranks // decode.ranks
    return prefill.position(sender, lists.sent - lists.missing + block, offset)
