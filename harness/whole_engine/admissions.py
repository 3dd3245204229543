"""Admissions: the hit of a request, by its first row, against the blocks in the pool (T1, A2).

A hit was possible if the blocks that it needs hold that request's content, could be found by the
engine's own index before the step and after it, and were not handed out in it. Content is compared,
not keys.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kvproof.harness.contract.whole_engine import EngineConfig, HitCounts, Output, Row
from kvproof.harness.whole_engine.device import ShadowDevice
from kvproof.harness.whole_engine.findings import Findings
from kvproof.harness.whole_engine.memory import Pool

LOST_HIT = "a_hit_that_is_possible_is_given"
UNREAD = "a_request_that_may_not_read_computes_all"
COUNTED = "published_hits_are_those_of_the_history"
KEPT = "a_block_leaves_the_index_for_another_one"

Found = Mapping[tuple[str, int], Collection[int]]
"""(Key, group) -> blocks that a new request can find."""
Given = Mapping[str, Collection[int]]
"""Memory -> blocks that were handed out."""
Block = tuple[str, int]
"""A memory and an id in it."""


@dataclass
class Admissions:
    """Judges each first row of a request, and what a step has evicted."""

    findings: Findings
    config: EngineConfig
    device: ShadowDevice
    evicts_singly: bool = True
    in_session: Callable[[str], int] = lambda _: 0
    """Tokens of a request that its session may hold: a turn goes on from those, whatever is found.
    """
    started: dict[str, int] = field(default_factory=dict)
    """Request -> position at which its first row began."""
    loading: set[str] = field(default_factory=set)
    """Requests that have waited for another tier: their hit was looked for in an earlier step."""
    _before: Found = field(default_factory=dict)

    def before(self, found: Found) -> None:
        """Note what can be found before a step."""
        self._before = found

    def stepped(self, found: Found, given: Given, statuses: Mapping[str, str]) -> None:
        """Judge the launches of a step, in which blocks were `given` to requests."""
        blocks = {(memory, each) for memory, ids in given.items() for each in ids}
        rows = [row for launch in self.device.recent for row in launch.rows]
        self.loading.update(name for name, status in statuses.items() if "remote" in status)
        self._evicted(found, {*blocks, *self._owned(rows)})
        first = [row for row in rows if row.fresh and row.request not in self.started]
        if first:
            self._judge(first, self._both(found, blocks))

    def _judge(self, rows: Sequence[Row], there: Mapping[int, set[int]]) -> None:
        pools = self.device.memory.pools
        content = [self._content(group, there.get(group, ())) for group in range(len(pools))]
        for row in rows:
            self.started[row.request] = row.start
            own = self.device.requests[row.request].request
            if not own.reads_cache:
                self._unread(row)
            elif self._looks_up(row.request):
                self._hit(row, content)

    def _looks_up(self, name: str) -> bool:
        return self.config.caching and name not in self.loading and not self.in_session(name)

    def answered(self, output: Output) -> None:
        """Check the published number of cached tokens of a prompt."""
        began, request = self.started.get(output.id), self.device.requests[output.id].request
        if output.cached < 0 or began is None or output.id in self.device.losses.requests:
            return
        last = began + (output.id in self.loading and began == len(request.prompt) - 1)
        self.findings.check(
            COUNTED,
            began <= output.cached <= last,
            lambda: (
                f"{output.id} answers that {output.cached} tokens of its prompt were cached, and "
                f"its first row began at {began}"
            ),
        )

    def counted(self, counts: HitCounts | None) -> None:
        """Check an engine's counters at rest against all first rows until now."""
        whose = self.device.losses.requests or self.loading - self.started.keys()
        if counts is None or self.config.peer or whose:
            return  # a request that has waited for another tier and never ran may be counted
        own = {name: self.device.requests[name].request for name in self.started}
        prompts = {name: len(each.prompt) for name, each in own.items()}
        whole = sum(
            self.started[name] == prompts[name] - 1 for name in self.started if name in self.loading
        )
        began, hit = sum(self.started.values()), counts.hit + counts.hit_outside
        asked = sum(prompts[name] for name, each in own.items() if each.reads_cache)
        expected = (
            asked if self.config.caching else 0,
            sum(prompts.values()) - counts.hit if self.config.connector else 0,
        )
        self.findings.check(
            COUNTED,
            began <= hit <= began + whole and (counts.asked, counts.asked_outside) == expected,
            lambda: (
                f"at rest the engine has published {counts}; {len(own)} first rows began behind "
                f"{began} tokens, (pool, other tier) were asked for {expected}"
            ),
        )

    def _unread(self, row: Row) -> None:
        handed_over = self.device.requests[row.request].request.handover
        self.findings.saw("a request that may not read the cache is admitted")
        self.findings.check(
            UNREAD,
            not row.start or handed_over,
            lambda: (
                f"{row.request} may not read the cache, and its first row begins at {row.start}"
            ),
        )

    def _content(self, group: int, blocks: Iterable[int]) -> set[bytes]:
        """Return the content of blocks: fingerprints of their slots, or a state and its length."""
        memory, pool, epoch = self.device.memory, self.device.memory.pools[group], self.device.epoch
        layer = pool.layers[0]
        if pool.visibility.by_position:
            return {memory.block(group, layer, block, epoch).tobytes() for block in blocks}
        return {_state(*memory.read_state(layer, block, epoch)) for block in blocks}

    def _hit(self, row: Row, content: Sequence[set[bytes]]) -> None:
        possible = self._longest(row.request, content)
        least = self._less_drafts(possible)
        self.findings.saw("a hit is possible", least)
        self.findings.check(
            LOST_HIT,
            row.start >= least,
            lambda: (
                f"{row.request} begins at {row.start}, and blocks with its first {possible} tokens "
                "could be found before that step and after it"
            ),
            facts={"possible": possible, "began": row.start},
        )

    def offered(self, name: str, found: Found) -> int:
        """Return the longest prefix of a request in blocks of `found`, or found before the step."""
        there: dict[int, set[int]] = defaultdict(set)
        for source in (self._before, found):
            for (_, group), blocks in source.items():
                there[group].update(blocks)
        groups = range(len(self.device.memory.pools))
        return self._longest(name, [self._content(each, there[each]) for each in groups])

    def _longest(self, name: str, content: Sequence[set[bytes]]) -> int:
        """Return the longest prefix of whole blocks that every group has in its content."""
        request = self.device.requests[name]
        pools, prints = self.device.memory.pools, request.chain.prints
        unit = self._unit()

        def there(group: int, pool: Pool, length: int) -> bool:
            if not pool.visibility.by_position:
                return _state(int(prints[length - 1]), length) in content[group]
            size = pool.block_size
            places = range(pool.visibility.first_block(length, size), length // size)
            return all(
                prints[at * size : (at + 1) * size].tobytes() in content[group] for at in places
            )

        longest = (len(request.request.prompt) - 1) // unit * unit
        return next(
            (
                length
                for length in range(longest, 0, -unit)
                if all(there(group, pool, length) for group, pool in enumerate(pools))
            ),
            0,
        )

    def _unit(self) -> int:
        return max(pool.block_size for pool in self.device.memory.pools)

    def _less_drafts(self, possible: int) -> int:
        """A draft model's cache needs the last block computed again; other groups keep no more."""
        if self.config.drafts is None:
            return possible
        return max(0, possible - self._unit()) if len(self.device.memory.pools) == 1 else 0

    def _evicted(self, found: Found, given: Collection[Block]) -> None:
        """Check that each block that left the index was given to a request, or is one of a row.

        A row may write into a block that could be found: a state's, or a partial one.
        """
        if self.device.losses.requests or not self.evicts_singly:
            return  # blocks that did not arrive are taken out of the index
        gone = self._blocks(self._before) - self._blocks(found)
        self.findings.saw("a block leaves the index", gone)
        self.findings.check(
            KEPT,
            gone <= set(given),
            lambda: (
                f"blocks {sorted(each for _, each in gone - set(given))} can be found no more, and "
                "no request has got them in that step"
            ),
        )

    def _owned(self, rows: Iterable[Row]) -> Iterator[Block]:
        return (
            (self._memory(group), block)
            for row in rows
            for group, reads in enumerate(row.groups)
            for block in reads.owned
        )

    def _both(self, after: Found, given: set[Block]) -> dict[int, set[int]]:
        """Return group -> blocks that were findable all the step long."""
        found: dict[int, set[int]] = defaultdict(set)
        for (key, group), blocks in self._before.items():
            name = self._memory(group)
            both = set(blocks) & set(after.get((key, group), ()))
            found[group] |= {each for each in both if (name, each) not in given}
        return found

    def _blocks(self, found: Found) -> set[Block]:
        return {(self._memory(group), each) for (_, group), ids in found.items() for each in ids}

    def _memory(self, group: int) -> str:
        return self.device.memory.pools[group].memory


def _state(print_: int, length: int) -> bytes:
    return b"%d %d" % (print_, length)
