"""Suite `tiered`: hits with tiers equal those of a pool without end.

A pool of a few blocks over tiers and a pool without end: both answer and hit the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from hypothesis import strategies as st

from kvproof.reference.core.attention_groups import GroupConfig
from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.engine.engine import Engine
from kvproof.reference.engine.engine_config import EngineConfig
from kvproof.reference.model.symbolic import SymbolicModel
from kvproof.reference.stores.object_store import Bytes, Lease, ObjectStore, StoreStatus
from kvproof.reference.tiers.disk_tier import DiskTier
from kvproof.suites.framework.component_suite import Arguments, ComponentSuite, Config, Draw
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.tiered_hits import properties as seen
from kvproof.suites.reference.tiered_hits.properties import MIXES, PROPERTIES
from kvproof.suites.reference.tiers.files import MemoryFiles

FULL = GroupConfig("full", 4)
# Without recurrent states: the positions of checkpoints depend on the cache at their creation.
GROUPS: dict[str, tuple[GroupConfig, ...]] = {
    "full": (FULL,),
    "two sizes": (FULL, GroupConfig("full", 2)),
    "window": (FULL, GroupConfig("window", 4, 9)),
    "chunk": (FULL, GroupConfig("chunk", 2, 8)),
    "windows only": (GroupConfig("window", 4, 6),),
    "draft": (FULL, GroupConfig("full", 4, draft=True)),
    "draft window": (FULL, GroupConfig("window", 2, 5, draft=True), GroupConfig("window", 4, 9)),
    "draft chunk": (GroupConfig("chunk", 4, 2, draft=True), GroupConfig("window", 4, 3)),
}
WITHOUT_END = 9000
LENGTH = 40
"""Length of a base, and of the longest prompt without its tail."""


class Reply(NamedTuple):
    tokens: tuple[int, ...]
    hit: int


class Shared:
    """A store that outlives its engines."""

    def __init__(self) -> None:
        self.objects: dict[bytes, bytes] = {}

    def store(self, objects: Mapping[bytes, Bytes]) -> frozenset[bytes]:
        """See ObjectStore."""
        self.objects |= {key: bytes(data) for key, data in objects.items()}
        return frozenset(objects)

    def lookup(self, keys: Sequence[bytes]) -> list[bool]:
        return [key in self.objects for key in keys]

    def acquire(self, keys: Sequence[bytes]) -> Lease:
        return Lease([memoryview(self.objects[k]) if k in self.objects else None for k in keys])

    def drop(self, keys: Iterable[bytes]) -> int:
        return sum(self.objects.pop(key, None) is not None for key in keys)

    def clear(self) -> int:
        count = len(self.objects)
        self.objects.clear()
        return count

    def status(self) -> StoreStatus:
        return StoreStatus(len(self.objects), sum(map(len, self.objects.values())), 0, 0)


class TieredHitsMachine:
    def __init__(self, config: Config, coverage: Coverage) -> None:
        self.config, self._coverage = config, coverage
        self.shared = Shared() if config["remote"] else None
        self._again = False
        self._large = self._engine(WITHOUT_END, host=0, shared=None)
        self._small, self._judge = self._tiny(), "tiers_hit_what_a_pool_without_end_hits"

    def _tiny(self) -> Engine:
        """Room for one prompt and little else; evicted blocks go to tiers."""
        blocks = 12 * self._large.cache.eviction.row_width + 2
        made = self._engine(blocks, host=self.config["host"], shared=self.shared)
        if self.config["disk"] and made.tiers is not None:
            made.tiers.disk = DiskTier(MemoryFiles(), 1 << 20)
            below = made.tiers.host.below
            below.stores = {"disk": made.tiers.disk, **below.stores}
        return made

    def _engine(self, blocks: int, *, host: int, shared: ObjectStore | None) -> Engine:
        cache = CacheConfig(blocks, groups=GROUPS[self.config["mix"]])
        config = EngineConfig(
            cache, max_batch_tokens=64, host_tier=host, weights="w", poison_freed=True
        )
        return Engine(config, SymbolicModel(cache), remote=shared)

    def apply(self, verb: str, **arguments: Any) -> object:
        """Run one operation and compare."""
        return getattr(self, verb)(**arguments)

    def serve(self, *, base: int, length: int, tail: list[int]) -> object:
        tokens = [(at * (base + 2) + at // (base + 3)) % 3 for at in range(length)] + tail
        before = self._loaded()
        said = [_said(engine, tokens) for engine in (self._small, self._large)]
        mix, saw = self.config["mix"], self._coverage.event
        self._coverage.check(
            self._judge,
            said[0] == said[1],
            partial("{} tokens on {}: {}, with a large pool {}".format, len(tokens), mix, *said),
        )
        came = {tier: count - before.get(tier, 0) for tier, count in self._loaded().items()}
        saw(seen.BACK[mix], any(came.values()))
        saw(seen.AGAIN, self._again and came.get("remote"))
        for tier, situation in seen.FROM.items():
            saw(situation, came.get(tier))
        return said[0].hit

    def restart(self) -> object:
        """Replace the engine by one with an empty pool, if there is a shared store."""
        if self.shared is None:
            return None
        self._small.close()
        self._small, self._judge = self._tiny(), "a_new_engine_hits_what_others_shared"
        self._again = bool(self.shared.objects)
        return len(self.shared.objects)

    def _loaded(self) -> dict[str, int]:
        return dict(self._small.tiers.loaded) if self._small.tiers else {}


def _said(engine: Engine, tokens: list[int]) -> Reply:
    before = engine.cache.statistics.cumulative.hits
    [answer] = engine.generate([tokens], max_new_tokens=2)
    return Reply(answer, engine.cache.statistics.cumulative.hits - before)


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
    if draw(st.integers(0, 9)) == 0:
        return "restart", {}
    return "serve", {
        "base": draw(st.integers(0, BASES - 1)),
        "length": draw(st.integers(1, LENGTH)),
        "tail": draw(st.lists(st.integers(0, 2), max_size=2)),
    }


SUITE = ComponentSuite("tiered", PROPERTIES, draw_config, TieredHitsMachine, draw_operation)
