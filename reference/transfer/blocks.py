"""Which blocks of which chunks move, and how much of them: numbers only, checked first (G4).

Ids are given per group for all chunks one after the other: `tokens / block` of them for each chunk,
of a state as many as it has rows. Id 0 is the null block, which is never read or written (G10).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple, TypeAlias

from kvproof.reference.transfer.chunk_layout import (
    ChunkGroup,
    ChunkLayout,
    LayoutError,
    first_needed,
)

Valid: TypeAlias = Sequence[Sequence[range]]
"""Per group and chunk: the positions of blocks, counted within the chunk, that may move."""


class TransferError(ValueError):
    """Ids, objects or sizes do not fit; nothing was enqueued."""


class Part(NamedTuple):
    """Blocks of one group to move in one chunk."""

    ids: list[int]
    """Ids of the blocks that the layout stores; 0: not this one."""
    skip: int
    """Leading tokens of these blocks that stay untouched."""
    tokens: int
    """Tokens that the layout stores, or rows of a state."""

    @property
    def nothing(self) -> bool:
        """Whether not a byte moves."""
        size = self.tokens // len(self.ids) if self.ids else 0
        return not any(self.ids[self.skip // size :]) if size else True

    @property
    def whole(self) -> bool:
        """Whether every byte moves."""
        return not self.skip and 0 not in self.ids


def ids_per_chunk(layout: ChunkLayout, group: ChunkGroup) -> int:
    """Return how many ids a group has for each chunk, those that are not stored included."""
    geometry = group.geometry
    return geometry.rows if geometry.kind == "state" else layout.tokens // geometry.block


def needed_blocks(
    layout: ChunkLayout, *, length: int, first_chunk: int = 0, chunks: int | None = None
) -> tuple[tuple[range, ...], ...]:
    """Return which blocks a request needs that reuses its first `length` tokens (X1, G10).

    Full attention needs all of them, a window and a chunk those that the next token sees, a state
    only the one after exactly `length` tokens.

    Raises:
        LayoutError: `length` is negative or beyond the chunks, or ends inside of a chunk of which
            some group stores only what a hit at its end needs.

    """
    count = -(-length // layout.tokens) - first_chunk if chunks is None else chunks
    end = (first_chunk + count) * layout.tokens
    if not 0 <= length <= end or first_chunk < 0:
        raise LayoutError(
            f"length {length} with {count} chunks of {layout.tokens} tokens from chunk "
            f"{first_chunk} on: expected 0 to {end}"
        )
    _check_end(layout, length)
    every = range(first_chunk, first_chunk + count)
    return tuple(
        tuple(_needed(layout, group, index, length) for index in every) for group in layout.groups
    )


def _check_end(layout: ChunkLayout, length: int) -> None:
    for index, group in enumerate(layout.groups if length % layout.tokens else ()):
        if group.geometry.kind == "state" or group.blocks < ids_per_chunk(layout, group):
            raise LayoutError(
                f"length {length} is no multiple of {layout.tokens}: group {index} "
                f"({group.geometry.kind}) is stored for hits at the ends of chunks only"
            )


def _needed(layout: ChunkLayout, group: ChunkGroup, chunk: int, length: int) -> range:
    geometry, start = group.geometry, chunk * layout.tokens
    if geometry.kind == "state":
        return range(geometry.rows if start + layout.tokens == length else 0)
    first = max(first_needed(geometry, length) - start, 0)
    end = min(length - start, layout.tokens)
    return range(first // geometry.block, -(-end // geometry.block)) if first < end else range(0)


def parts_of(
    layout: ChunkLayout,
    ids: Sequence[Sequence[int]],
    *,
    chunks: int,
    valid: Valid | None = None,
    skip_first_tokens: int = 0,
) -> list[list[Part]]:
    """Return the parts to move, per group and chunk. Raises TransferError for wrong numbers."""
    groups = layout.groups
    if len(ids) != len(groups) or (valid is not None and len(valid) != len(groups)):
        given = len(ids) if valid is None else (len(ids), len(valid))
        raise TransferError(f"ids of {given} groups, the layout has {len(groups)}")
    if skip_first_tokens < 0:
        raise TransferError(f"skip_first_tokens is {skip_first_tokens}, expected 0 or more")
    return [
        _parts(layout, index, ids[index], chunks, valid, skip_first_tokens)
        for index in range(len(groups))
    ]


def _parts(
    layout: ChunkLayout,
    index: int,
    ids: Sequence[int],
    chunks: int,
    valid: Valid | None,
    skip: int,
) -> list[Part]:
    group = layout.groups[index]
    each = ids_per_chunk(layout, group)
    if len(ids) != each * chunks:
        raise TransferError(
            f"group {index} has {len(ids)} ids, {chunks} chunks of {each} need {each * chunks}"
        )
    ranges = [range(each)] * chunks if valid is None else valid[index]
    if len(ranges) != chunks:
        raise TransferError(f"group {index} has {len(ranges)} valid ranges for {chunks} chunks")
    first = each - group.blocks
    return [
        Part(
            [ids[each * chunk + at] if at in ranges[chunk] else 0 for at in range(first, each)],
            _skipped(layout, group, skip - chunk * layout.tokens),
            group.tokens,
        )
        for chunk in range(chunks)
    ]


def _skipped(layout: ChunkLayout, group: ChunkGroup, skip: int) -> int:
    """Tokens to skip of those that the layout stores; they are the last ones of the chunk (G6)."""
    if group.geometry.kind == "state":
        return group.tokens if skip >= layout.tokens else 0
    return min(group.tokens, max(0, skip - (layout.tokens - group.tokens)))


def check_ids(parts: Sequence[Part], group: int, blocks: int, *, written: bool) -> None:
    """Refuse ids that are no blocks, and blocks that would be written twice (G4)."""
    used = list(chain.from_iterable(part.ids for part in parts))
    if not used:
        return
    least, most = min(used), max(used)
    if least < 0 or most >= blocks:
        raise TransferError(f"group {group} has ids {least} to {most}, expected 0 to {blocks - 1}")
    found = [block for block in used if block]
    if written and len(set(found)) < len(found):
        twice = next(block for block in found if found.count(block) > 1)
        raise TransferError(f"group {group} would write block {twice} twice")


def pages(ids: Sequence[int], ratio: int) -> list[int]:
    """Return the pages of blocks; those of the null block are all 0, never its other pages (K3)."""
    if ratio == 1:
        return list(ids)
    return [block and block * ratio + page for block in ids for page in range(ratio)]
