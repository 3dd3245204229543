"""How often a workload profile draws what is rare elsewhere."""

from __future__ import annotations

from typing import NamedTuple

EIGHTHS = 8
"""The unit of weights: how many draws out of eight."""


class Weights(NamedTuple):
    """Chances, out of eight."""

    runs_of_spans: int = 0
    """Of the prompts: get up to five spans."""
    overlapping_clamps: int = 0
    """Of the prompts: their clamp needs two rounds."""
    drafts: int = 0
    """Of the extensions: have draft tokens."""
    unrouted: int = 0
    """Of the steps: complete without expert rows."""
    forks: int = 0
    """Of the prompts: leave an earlier one anywhere, also inside a span."""
