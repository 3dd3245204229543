"""The life cycles of the reference as tables, from its transition tables."""

from __future__ import annotations

from kvproof.reference.core.checkpoint import CHECKPOINT_LIFE
from kvproof.reference.core.lifecycle import Transitions
from kvproof.reference.engine.request_queue import REQUEST_LIFE

LIVES = (REQUEST_LIFE, CHECKPOINT_LIFE)


def life_cycles() -> str:
    """Return one section per life cycle: its moves as a table."""
    return "\n".join(map(_section, LIVES))


def _section(life: Transitions) -> str:
    columns = list(dict.fromkeys(event for _, event in life.table))
    head = f"| in state | {' | '.join(columns)} |\n|{' --- |' * (len(columns) + 1)}\n"
    rows = "".join(_row(life, state, columns) for state in life.states())
    return (
        f"## {life.name}\n\nIt begins as *{life.start}*. A cell names the next state; an empty one "
        f"raises `IllegalMove` and changes nothing.\n\n{head}{rows}"
    )


def _row(life: Transitions, state: str, events: list[str]) -> str:
    cells = [life.table.get((state, event), "") for event in events]
    return f"| {state} | {' | '.join(cells)} |\n"
