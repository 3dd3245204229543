"""Options of a run."""

from __future__ import annotations

from typing import Literal

import msgspec

from kvproof.eval.run.config import EvalConfig
from kvproof.eval.scbench.data import Task

KEY = "scbench"

Mode = Literal["turns", "requests"]
"""One conversation, in which own answers are fed back; or requests of their own."""

MODES: tuple[Mode, ...] = ("turns", "requests")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a run."""

    tasks: tuple[Task, ...]
    modes: tuple[Mode, ...]
    sessions: int
    """Sessions of each task."""
    data: str = ""
    """Folder of public files; empty: the miniature."""
    margin: float = 0.1
    """Largest share of right answers (of texts, with that rule) whose loss a pass allows."""
    config: EvalConfig
    weights: str = ""
