"""Suite `settings`: any kernel block size with any block size, and models of every kind."""

from __future__ import annotations

from hypothesis import strategies as st

from kvproof.suites.framework.component_suite import Arguments, ComponentSuite, Config, Draw
from kvproof.suites.reference.config.machine import NOBODYS, REWRITING, WRITING_ONCE, ConfigMachine
from kvproof.suites.reference.config.properties import PROPERTIES

LARGEST = 96


def draw_config(_: Draw) -> Config:
    """Every operation has its own."""
    return {}


def draw_operation(_: ConfigMachine, draw: Draw) -> tuple[str, Arguments]:
    """Draw sizes, half of the time such that one divides the other, or a model."""
    if not draw(st.integers(0, 2)):
        family = draw(st.sampled_from((*REWRITING, *WRITING_ONCE, *NOBODYS)))
        return "read", {"family": family, "inside": draw(st.booleans())}
    block, kernel = draw(st.integers(1, LARGEST)), draw(st.integers(-2, LARGEST))
    if kernel > 0 and draw(st.booleans()):
        block = kernel * draw(st.integers(1, 4))
    # 0 is the default: as large as the block
    return "configure", {"block": block, "kernel": kernel or -1, "group": draw(st.booleans())}


SUITE = ComponentSuite("settings", PROPERTIES, draw_config, ConfigMachine, draw_operation)
