"""A pool of a few blocks over tiers beside a pool without end: they say and hit the same."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from hypothesis import strategies as st

from kvproof.reference.config import CacheConfig
from kvproof.reference.engine import Engine
from kvproof.reference.engine_config import EngineConfig
from kvproof.reference.groups import GroupConfig
from kvproof.reference.symbolic import SymbolicModel
from kvproof.suites.part import Arguments, Draw, Recorder
from kvproof.suites.tiers import properties as seen

FULL = GroupConfig("full", 4)
STATE = "state"
MIXES: dict[str, tuple[GroupConfig, ...]] = {
    "full": (FULL,),
    "two sizes": (FULL, GroupConfig("full", 2)),
    "window": (FULL, GroupConfig("window", 4, 9)),
    "chunk": (FULL, GroupConfig("chunk", 2, 8)),
    "windows only": (GroupConfig("window", 4, 6),),
    STATE: (FULL, GroupConfig("state", 4, state_blocks=2)),
    "draft": (FULL, GroupConfig("full", 4, draft=True)),
    "draft window": (FULL, GroupConfig("window", 2, 5, draft=True), GroupConfig("window", 4, 9)),
    "draft chunk": (GroupConfig("chunk", 4, 2, draft=True), GroupConfig("window", 4, 3)),
}
LENGTH, BASES = 40, 3
WITHOUT_END = 9000


def draw_serve(draw: Draw) -> Arguments:
    """Draw prompts that share beginnings: a base, how much of it, and what follows."""
    one = st.tuples(
        st.integers(0, BASES - 1), st.integers(1, LENGTH), st.lists(st.integers(0, 2), max_size=2)
    )
    prompts = draw(st.lists(one, min_size=4, max_size=10))
    return {
        "mix": draw(st.sampled_from(sorted(MIXES))),
        "prompts": [list(each) for each in prompts],
    }


def serve(recorder: Recorder, *, mix: str, prompts: Sequence[tuple[int, int, list[int]]]) -> Any:
    """Serve prompts one after the other, and compare what both say and hit."""
    groups = MIXES[mix]
    large = _engine(groups, WITHOUT_END, host=0)
    few = 12 * large.cache.residency.row_width + (14 if mix == STATE else 2)
    small = _engine(groups, few, host=1 << 30)
    for base, length, tail in prompts:
        tokens = [(at * (base + 2) + at // (base + 3)) % 3 for at in range(length)] + tail
        said = [_served(engine, tokens) for engine in (small, large)]
        recorder.check(
            "tiers_hit_what_a_pool_without_end_hits",
            said[0] == said[1],
            partial("{} tokens on {}: {}, with a large pool {}".format, len(tokens), mix, *said),
        )
    loaded = sum(small.tiers.loaded.values()) if small.tiers else 0
    recorder.saw(seen.MIXED[mix], loaded)
    return loaded


def _engine(groups: tuple[GroupConfig, ...], blocks: int, *, host: int) -> Engine:
    cache = CacheConfig(blocks, groups=groups)
    config = EngineConfig(cache, max_batch_tokens=64, host_tier=host, poison_freed=True)
    return Engine(config, SymbolicModel(cache))


def _served(engine: Engine, tokens: list[int]) -> tuple[tuple[int, ...], int]:
    before = engine.cache.statistics.cumulative.hits
    [answer] = engine.generate([tokens], max_new_tokens=2)
    return answer, engine.cache.statistics.cumulative.hits - before
