"""Words and numbers of a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvproof.reference.planner.plan import PlannedGroup
    from kvproof.reference.planner.summary import Alike

_BYTES = (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10))


def nbytes(size: int) -> str:
    """`3.00 MiB`; below 10 KiB in bytes."""
    for unit, bits in _BYTES:
        if size >= 10 << bits or (size >= 1 << bits and bits > 10):
            return f"{size / (1 << bits):,.2f} {unit}"
    return f"{size:,} B"


def sees(group: PlannedGroup) -> str:
    """`window 1,024`."""
    words = {"full": "everything", "state": "recurrent state"}
    text = words.get(group.kind, f"{group.kind} {group.size:,}")
    if group.ratio > 1:
        text = f"{text.replace('everything', 'all')}, entries of {group.ratio}"
    return f"{text}, draft" if group.draft else text


def numbers(run: Alike) -> str:
    """`3` or `3 to 7`."""
    return f"{run.first}" if run.first == run.last else f"{run.first} to {run.last}"
