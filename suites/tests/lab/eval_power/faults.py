"""Cache faults as they strike hits, and what a struck hit looks like."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np


class Effect(NamedTuple):
    """A struck hit: largest difference of a token, and whether its text and letter change."""

    quantiles: tuple[float, ...]
    """Of the largest difference, in nats: smallest, 10, 25, 50, 75, 90 %, largest."""
    text: float
    """Probability that the text changes."""
    letter: float
    """Probability that the letter changes."""
    measured: bool = True
    """With the shipped probe model; else assumed."""

    def draw(self, rng: np.random.Generator) -> float:
        """Draw a largest difference."""
        logs = [math.log(each) for each in self.quantiles]
        return math.exp(float(np.interp(rng.random(), LEVELS, logs)))


LEVELS = (0, 0.1, 0.25, 0.5, 0.75, 0.9, 1)

BLOCK = Effect((0.87, 3.4, 8.5, 11.0, 15.0, 16.5, 17.5), 0.92, 0.60)
STATE = Effect((0.1, 1.0, 3.0, 5.3, 7.2, 12.0, 16.9), 0.50, 0.50)
POSITION = Effect((0.5, 1.5, 7.0, 12.5, 14.5, 15.5, 16.0), 0.77, 0.69)
MAPPING = Effect((5.5, 8.4, 10.7, 13.6, 15.3, 17.4, 20.7), 0.93, 0.90)
WEAK = Effect((0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5), 0.05, 0.02, measured=False)
SHIFT = Effect((0.2, 0.25, 0.28, 0.3, 0.32, 0.35, 0.4), 0.2, 0.05, measured=False)
FAINT = Effect((5e-4, 1e-3, 1.5e-3, 2e-3, 3e-3, 5e-3, 8e-3), 0.0, 0.0, measured=False)


class Fault(NamedTuple):
    """Which hits are struck, and how."""

    name: str
    effect: Effect
    every: int = 1
    """Each so-many-th hit."""
    share: float = 1.0
    """Of samples whose hits can be struck."""


FAULTS = (
    Fault("wrong block", BLOCK),
    Fault("stale state", STATE),
    Fault("namespace ignored", BLOCK),
    Fault("position off by one", POSITION, share=0.26),
    Fault("kernel block mapping", MAPPING),
    Fault("wrong block, one hit in 8", BLOCK, every=8),
    Fault("wrong block, one hit in 30", BLOCK, every=30),
    Fault("wrong block, one hit in 200", BLOCK, every=200),
    Fault("wrong block in hits over 1,024 tokens", BLOCK, share=1 / 3),
    Fault("wrong block at a block border", BLOCK, share=1 / 64),
    Fault("wrong block with a window crossed", BLOCK, share=0.2),
    Fault("wrong image", BLOCK, share=0.1),
    Fault("stale state, one hit in 8", STATE, every=8),
    Fault("stale state, one hit in 30", STATE, every=30),
    Fault("stale state behind an eviction", STATE, share=0.05),
    Fault("wrong scale of the cache dtype", WEAK),
    Fault("a neighbour's last token", WEAK),
    Fault("a neighbour's last token, one hit in 8", WEAK, every=8),
    Fault("swapped experts", WEAK),
    Fault("swapped experts, one hit in 30", WEAK, every=30),
    Fault("scale off in the last digit", FAINT),
    Fault("0.3 nats, one hit in 8", SHIFT, every=8),
)
