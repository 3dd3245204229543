"""A cache manager whose pool changes its size, and the content of every block."""

from __future__ import annotations

from typing import Any

from kvproof.reference.cache.cache_manager import CacheManager
from kvproof.reference.cache.elastic import resize
from kvproof.reference.cache.holders import holders
from kvproof.reference.cache.request_state import Refusal
from kvproof.reference.core.attention_groups import GroupConfig
from kvproof.reference.core.block_pool import Ids
from kvproof.reference.core.cache_config import CacheConfig
from kvproof.suites.framework.component_suite import IGNORED, Config
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.pool_sizes import properties as seen


class PoolMachine:
    """Requests compute all their tokens in one step, which ends at once or later."""

    def __init__(self, config: Config, coverage: Coverage) -> None:
        self._coverage = coverage
        self._block: int = config["block"]
        groups = (GroupConfig("full", self._block), *self._others(config))
        self._plain = len(groups) == 1
        self.manager = CacheManager(
            CacheConfig(config["blocks"], block_size=self._block, groups=groups)
        )
        self._first = self._size = config["blocks"]
        self.requests: dict[str, str] = {}
        """Request -> its text."""
        self.steps: list[tuple[int, str]] = []
        self._content: dict[int, str] = {}
        """Block of full attention -> the text up to its end, once it was computed."""
        self._count = 0
        self._changed = False
        self._evicted: list[Ids] = []
        self._evict, self.manager.evict = self.manager.evict, self._noted  # type: ignore[method-assign]  # to see each call

    def _others(self, config: Config) -> tuple[GroupConfig, ...]:
        window = (GroupConfig("window", self._block, config["window"]),) if config["window"] else ()
        return (*window, *((GroupConfig("state", self._block),) if config["state"] else ()))

    def _noted(self, count: int) -> Ids:
        self._evicted.append(self._evict(count))
        return self._evicted[-1]

    def apply(self, verb: str, /, **arguments: Any) -> object:
        """Run one operation and compare (see `Machine`)."""
        answer = getattr(self, verb)(**arguments)
        self._ids()
        return answer

    # --- operations ---

    def serve(self, text: str, *, ends: bool) -> object:
        """Admit a request and compute it; its step ends at once, or later."""
        self._count += 1
        name, tokens = f"r{self._count}", tuple(map(ord, text))
        step = self.manager.begin_step()
        answer = self.manager.admit(name, tokens)
        self._fits(text, answer)
        if isinstance(answer, Refusal):
            self.manager.end_step(step)
            return answer.reason
        self.requests[name] = text
        self._hit(name, answer.hit)
        self.steps.append((step, name))
        if ends:
            while self.steps:
                self.end()
        return f"{name} hits {answer.hit} of {len(text)}"

    def end(self) -> object:
        """End the oldest step."""
        if not self.steps:
            return IGNORED
        step, name = self.steps.pop(0)
        text = self.requests.get(name, "")
        for index, block in enumerate(self._table(name)):
            stop = (index + 1) * self._block
            self._content[block] = text[:stop] if stop <= len(text) else ""
        self.manager.end_step(step)
        return name

    def finish(self, which: int) -> object:
        """Release a request."""
        if not self.requests:
            return IGNORED
        name = [*self.requests][which % len(self.requests)]
        del self.requests[name]
        self.manager.release(name)
        return name

    def resize(self, blocks: int) -> object:
        """Change the size of the pool."""
        before, held = self._tables(), max(holders(self.manager), default=0)
        shrinks, cached = blocks < self._size, self.manager.usage().cached
        self._evicted.clear()
        found = resize(self.manager, blocks)
        wanted = max(blocks, held + 1) if shrinks else blocks
        self._coverage.equal(
            seen.SHRINKS, found, wanted, f"{blocks} blocks asked for, the pool has"
        )
        self._coverage.equal(seen.HELD, self._tables(), before, "tables are")
        gone = [tuple(ids) for ids in self._evicted]
        self._coverage.check(
            seen.MUST,
            not gone or max(gone[-1], default=0) >= found,
            lambda: f"{gone} were evicted, the last of them for no block from {found} on",
        )
        self._see(shrinks=shrinks, stopped=found > blocks, cached=cached)
        self._size, self._changed = found, True
        return found

    def _see(self, *, shrinks: bool, stopped: bool, cached: int) -> None:
        event = self._coverage.event
        event(seen.GROWN, not shrinks and self.requests)
        event(seen.SHRUNK, shrinks and self.requests)
        event(seen.STOPPED, stopped)
        event(seen.EVICTED, self._evicted)
        event(seen.KEPT, shrinks and cached and self.manager.usage().cached)
        event(seen.IN_FLIGHT, shrinks and self.steps)

    # --- checks ---

    def _table(self, name: str) -> list[int]:
        live = name in self.manager.live
        return [*map(int, self.manager.tables(name)[0])] if live else []

    def _tables(self) -> dict[str, list[list[int]]]:
        names = sorted(self.manager.live)
        return {name: [[*ids] for ids in self.manager.tables(name)] for name in names}

    def _ids(self) -> None:
        usage, free = self.manager.usage(), self.manager.pool.free_ids().tolist()
        used = [b for tables in self._tables().values() for ids in tables for b in ids if b]
        every = [*free, *used]
        self._coverage.check(
            seen.ADDS_UP,
            usage.free + usage.held + usage.cached == self._size - 1
            and len({*free}) == len(free) == usage.free
            and not {*free} & {*used}
            and all(0 < block < self._size for block in every),
            lambda: f"a pool of {self._size} has {usage}, free {free} and in tables {used}",
        )

    def _hit(self, name: str, hit: int) -> None:
        text, table = self.requests[name], self._table(name)
        stops = range(self._block, hit + 1, self._block)
        found = [self._content.get(table[stop // self._block - 1]) for stop in stops]
        wanted = [text[:stop] for stop in stops]
        self._coverage.equal(seen.CONTENT, found, wanted, f"{name} hits blocks with")
        self._coverage.event(seen.HIT, hit and self._changed)

    def _fits(self, text: str, answer: object) -> None:
        if not self._plain:
            return
        needed = -(-len(text) // self._block)
        refused = isinstance(answer, Refusal) and answer.reason == "never_fits"
        self._coverage.equal(
            seen.FITS,
            refused,
            needed > self._size - 1,
            f"{needed} blocks in a pool of {self._size} are refused for good:",
        )
        self._coverage.event(seen.TOO_LONG, refused)
        self._coverage.event(seen.FITS_NOW, not refused and needed > self._first - 1)
