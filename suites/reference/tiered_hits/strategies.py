"""Suite `tiered`: what tiers bring back is what a pool without end would have had."""

from __future__ import annotations

from hypothesis import strategies as st

from kvproof.suites.framework.component_suite import Arguments, ComponentSuite, Config, Draw
from kvproof.suites.reference.tiered_hits.machine import LENGTH, TieredHitsMachine
from kvproof.suites.reference.tiered_hits.properties import MIXES, PROPERTIES

BASES = 3
PLENTY, FEW = 1 << 20, 200
"""Bytes of host memory: everything, or a few objects."""


def draw_config(draw: Draw) -> Config:
    """Draw groups, and tiers that hold everything together."""
    disk, remote = draw(
        st.sampled_from(((False, False), (True, False), (False, True), (True, True)))
    )
    return {
        "mix": draw(st.sampled_from(MIXES)),
        "host": draw(st.sampled_from((PLENTY, FEW))) if disk or remote else PLENTY,
        "disk": disk,
        "remote": remote,
    }


def draw_operation(_: TieredHitsMachine, draw: Draw) -> tuple[str, Arguments]:
    """Draw a prompt that shares a beginning with others, now and then another engine."""
    if draw(st.integers(0, 9)) == 0:
        return "restart", {}
    return "serve", {
        "base": draw(st.integers(0, BASES - 1)),
        "length": draw(st.integers(1, LENGTH)),
        "tail": draw(st.lists(st.integers(0, 2), max_size=2)),
    }


SUITE = ComponentSuite("tiered", PROPERTIES, draw_config, TieredHitsMachine, draw_operation)
