"""Known failures of Mooncake's workers in vLLM; the pages of the findings have the causes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kvproof.harness.contract.disaggregation_sides import Side
from kvproof.suites.framework.failed import Failed

_FEWER = "P num blocks less than D"
_LONGER = "Destination transfer region exceeds remote KV block size."
_UNPAIRED = ("could not be broadcast", "list index out of range")
"""Python's words for two lists of kernel blocks of unlike lengths."""


def pulled_latent_blocks_are_not_compared(found: Failed) -> bool:
    """Blocks of unlike sizes are paired by their number, each from its first token on."""
    lists = _Lists.of(found)
    unlike = lists.unit(lists.prefill) != lists.unit(lists.decode) or (
        lists.prefill.block_size != lists.decode.block_size
    )
    return unlike and lists.prefill.latent and _predicted(found, lists)


def pulled_context_ranks_are_not_compared(found: Failed) -> bool:
    """Context ranks are taken for workers that have all tokens of a block."""
    lists = _Lists.of(found)
    alike = lists.prefill.block_size == lists.decode.block_size
    shared = lists.prefill.context != lists.decode.context
    return alike and shared and _predicted(found, lists)


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
    return (_LONGER,) if lists.parts(lists.prefill) == lists.parts(lists.decode) else _UNPAIRED


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
