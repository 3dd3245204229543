"""Block tables of several groups, as a recording writes them: the differences to those before.

An edit of one table is `[nulls, kept, *blocks]`: the first `nulls` entries are null, those up to
`kept` are as they were, and `blocks` follow. Windows and states are short in it, however long their
request is.
"""

from __future__ import annotations

from collections.abc import Sequence

NULL = 0
Tables = tuple[tuple[int, ...], ...]
"""Per group: block ids in position order, null where nothing is kept."""


def edit(old: Sequence[int], new: Sequence[int]) -> list[int]:
    """Return the edit that turns `old` into `new`."""
    nulls = next((at for at, block in enumerate(new) if block != NULL), len(new))
    most = min(len(old), len(new))
    if old[nulls:most] == new[nulls:most]:
        kept = max(nulls, most)
    else:
        kept = next(at for at in range(nulls, most) if old[at] != new[at])
    return [nulls, kept, *new[kept:]]


def edited(old: Sequence[int], change: Sequence[int]) -> tuple[int, ...]:
    """Return a table after an edit. Raises ValueError for one that does not fit."""
    nulls, kept, *blocks = change
    if not 0 <= nulls <= kept <= max(len(old), nulls):
        raise ValueError(f"an edit of {nulls} null and {kept} kept entries of {len(old)}")
    return (*[NULL] * nulls, *old[nulls:kept], *blocks)


def fresh(old: Sequence[int], new: Sequence[int]) -> tuple[int, ...]:
    """Return the blocks of a table that came to their places: one may have come back at once."""
    placed = enumerate(new)
    return tuple(
        block for at, block in placed if block != NULL and (at >= len(old) or old[at] != block)
    )
