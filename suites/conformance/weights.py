"""How often a workload profile draws rare traffic."""

from __future__ import annotations

from typing import NamedTuple

EIGHTHS = 8
"""The unit of weights: draws out of eight."""


class Weights(NamedTuple):
    """Chances, out of eight."""

    runs_of_spans: int = 0
    """Prompts with up to five spans."""
    overlapping_clamps: int = 0
    """Prompts whose clamp needs two rounds."""
    drafts: int = 0
    """Extensions with draft tokens."""
    unrouted: int = 0
    """Steps that complete without expert rows."""
    forks: int = 0
    """Prompts that leave an earlier one anywhere, also inside a span."""
