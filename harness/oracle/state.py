"""The state of one history, with queries on it; checks read it, `session.py` changes it."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from kvproof.harness.contract import operations as ops
from kvproof.harness.contract.profile import Profile
from kvproof.harness.contract.target import Inspection, Request, Scheduled, Table, TargetConfig
from kvproof.harness.model.fingerprints import Fingerprints, fingerprints
from kvproof.harness.oracle.cache_model import CacheModel
from kvproof.harness.oracle.contents import Entry
from kvproof.harness.oracle.group_layout import Layout
from kvproof.harness.oracle.longest_hit import HitOracle, Resident
from kvproof.harness.oracle.partial_blocks import PartialBlocks
from kvproof.harness.oracle.recency import Recency
from kvproof.harness.oracle.recurrent_states import RecurrentStates
from kvproof.harness.oracle.shadow_memory import ShadowMemory

NULL_BLOCK = 0


@dataclass
class RequestState:
    """A request with its tables and its progress."""

    request: Request
    prints: Fingerprints
    epoch: int
    layout: Layout
    groups: tuple[Table, ...] = ()
    """Blocks per group, null where nothing is visible any more."""
    tables: tuple[Table, ...] = ()
    blocks: Table = ()
    """Blocks of the shared pool, of all groups in order, without nulls."""
    held: frozenset[int] = frozenset()
    """`blocks`, to be compared with those of others."""
    sets: tuple[frozenset[int], ...] = ()
    """The entries of each group, if there are several."""
    computed: int = 0
    """Tokens computed or scheduled."""
    hit: int = 0
    """Tokens from the cache at admission."""
    matched: int = 0
    """Tokens that were cached at admission, also where a hit would have ended inside a span."""
    stored: int = 0
    """Tokens up to which units are reusable already, or may not become so."""
    scheduled: Table = ()
    """First table of its latest step, when that was scheduled."""
    steps: dict[int, int] = field(default_factory=dict)
    """Steps in flight -> first token of each."""
    drafts: int = 0
    """Draft tokens at the end that are neither accepted nor rejected yet."""
    prompt: int = 0
    """Tokens at admission."""
    junction: int = 0
    """Where its attention groups matched further than its state; 0 for nowhere (S8)."""
    encoded: set[int] = field(default_factory=set)
    """Spans whose encoder has run."""
    routed: npt.NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    """Per computed position, one of NO_ROW, ROW, FILLED_ROW."""

    def show(self, groups: tuple[Table, ...], tables: tuple[Table, ...]) -> None:
        """Set the tables to those of the latest answer."""
        self.groups, self.tables = groups, tables
        single = self.layout.single and groups
        self.blocks = groups[0] if single else self.layout.flat(groups)
        self.held = frozenset(self.blocks)
        self.sets = () if single else tuple(map(frozenset, groups))

    @property
    def earliest(self) -> int:
        """First token of its oldest step in flight, else the tokens computed."""
        return min(self.steps.values(), default=self.computed)


@dataclass(frozen=True)
class Step:
    """A step: its range of tokens and the blocks that it touches."""

    live: RequestState
    start: int
    stop: int
    blocks: frozenset[int]
    """Blocks of the shared pool that it reads or writes."""
    answer: Scheduled
    """The answer that scheduled it."""
    fresh: Table = ()
    """Blocks of the shared pool that its request did not have before."""
    written: Table = ()
    """Blocks of the shared pool that it writes."""
    held: frozenset[int] = frozenset()
    """Blocks outside the tables that are held until it is done: states, destinations of copies."""
    sources: frozenset[int] = frozenset()
    """Blocks that it copies from: of checkpoints, and partial last ones."""
    slots: frozenset[int] = frozenset()
    """Slots of the separate state pool that it reads or writes."""
    drafts: int = 0
    """How many of its tokens may be rejected when it is done."""
    saves: tuple[tuple[int, int, Table], ...] = ()
    """(tokens, group, blocks): checkpoints that it saves."""
    frozen: tuple[tuple[int, int], ...] = ()
    """(block, group): copies of the tokens after the last full unit, made when it is done."""


@dataclass
class Fenced:
    """Blocks given back while a step in flight may still touch them (B6)."""

    request: Request
    blocks: Table
    steps: set[int]
    confirmed: bool = True
    """False: nothing is visible in them any more, so that they may be free already."""


@dataclass
class Changes:
    """Changes of the cache since the last inspection."""

    allocated: set[int] = field(default_factory=set)
    """Blocks handed out."""
    victims: dict[int, Entry] = field(default_factory=dict)
    """The entries of those of them that were cached."""
    overwritten: list[Entry] = field(default_factory=list)
    """Checkpoints whose rows were taken for other states."""
    superseded: set[int] = field(default_factory=set)
    """Contents of the blocks after which checkpoints were frozen."""
    duplicates_freed: list[tuple[int, Fingerprints, int, int]] = field(default_factory=list)
    """(block, prints, index, group): given back because another block has the same content."""


@dataclass
class Situations:
    """How often each situation occurred, and admissions by the blocks that they hit."""

    seen: Counter[str] = field(default_factory=Counter)
    hits: Counter[str] = field(default_factory=Counter)


class Forecast(NamedTuple):
    """The hits that the rules allow for one request now, in tokens."""

    prints: Fingerprints
    resident: Resident | None
    """None where the request's longest cached prefix is its hit."""
    cached: int
    """The longest hit of an equal request that may read."""
    expected: int
    """The longest hit of this request."""
    listed: int
    """The longest hit whose last unit is cached in some group; less only without full attention."""


def _never(_: object) -> bool:
    return False


class OracleState:
    """All data of one history."""

    oracles: ClassVar[frozenset[str]] = frozenset()
    """The oracles that judge; empty: all. Tests of the shadow memory silence the others."""

    def __init__(self, profile: Profile, config: TargetConfig, *, audited: bool = True) -> None:
        self.profile = profile
        self.config = config
        self.audited = audited
        """Whether the target is inspected after every operation."""
        self.layout = layout = Layout.of(config)
        self.shadow = ShadowMemory(
            num_blocks=config.num_blocks,
            block_size=layout.stride,
            host_blocks=config.host_blocks,
        )
        self.recurrent = RecurrentStates(layout, config, profile, self.shadow)
        tree = profile.index == "tree"
        self.model = CacheModel(layout, by_unit=tree)
        self.partial = PartialBlocks(self.model, layout) if config.partial_blocks else None
        in_all_groups = profile.eviction_order == "lru_in_all_groups"
        self.recency = Recency(self.model, layout, runs=in_all_groups, tree=tree)
        self.hits = HitOracle(self.model, layout, config, profile, self.partial)
        self.epoch = 0
        self.live: dict[str, RequestState] = {}
        self.left: RequestState | None = None
        """The request that was released last."""
        self.fenced: list[Fenced] = []
        """Given back while a step was in flight: not to be handed out until it is done (B6)."""
        self.pins: dict[str, Table] = {}
        self.pinned_slots: dict[str, Table] = {}
        """Slots of the separate state pool that pins keep."""
        self.steps: OrderedDict[int, Step] = OrderedDict()
        """Steps in flight, oldest first."""
        self.history: list[tuple[ops.Operation, object]] = []
        self.checks: Counter[str] = Counter()
        """Property -> how often it was evaluated."""
        self.situations = Situations()
        self.changes = Changes()
        self.excuse: Callable[[Any], bool] = _never
        """Takes a Violation; True: it is known, and the history goes on."""
        self.inspected: Inspection | None = None
        """The latest inspection."""
        self.evicted_in_place: set[int] = set()
        """Evicted on request and still at their old place in the free order."""
        self.replaceable: set[int] = set()
        """Contents of checkpoints that were made while decoding (S6)."""
        self.not_stored: set[int] = set()
        """Fingerprints at the ends of units that requests computed which may not store (A2)."""
        self.rejected: set[int] = set()
        """Fingerprints at the ends of units with a rejected draft token (X5)."""

    # --- holders ---

    def holders(self) -> Counter[int]:
        """Return block -> holders: requests, fenced ones included, steps' states and pins (B2)."""
        counts: Counter[int] = Counter()
        for live in self.live.values():
            counts.update(live.blocks)
        for fenced in self.fenced:
            if fenced.confirmed:
                counts.update(fenced.blocks)
        if self.layout.states:
            counts.update({b for step in self.steps.values() for b in step.held} - counts.keys())
        for table in self.pins.values():
            counts.update(table)
        return counts

    def copied(self) -> set[int]:
        """Return the blocks that steps in flight copy from."""
        return {block for step in self.steps.values() for block in step.sources}

    def unsettled(self) -> set[int]:
        """Return blocks that may be held or not: a running step copies from them or saw them."""
        maybe = {block for f in self.fenced if not f.confirmed for block in f.blocks}
        return maybe | self.copied() if self.steps else maybe

    def taken(self) -> set[int]:
        """Return the blocks that may be held."""
        return self.holders().keys() | self.unsettled()

    def cached_tokens(self) -> int:
        """Return the tokens that an index of whole units keeps, and those of partial blocks."""
        partial = self.partial.tokens() if self.partial else 0
        return len(self.model.contents()) * self.layout.unit + partial

    def settle(self, holders: Counter[int]) -> None:
        """Update which cached blocks are idle, and since when."""
        held = holders.keys() | self.copied() if self.steps else holders.keys()
        self.recency.settle(held)

    # --- rows of the separate state pool ---

    def rows_in_use(self, ignoring: RequestState | None = None) -> set[int]:
        """Return the rows of running states and of steps in flight, except of one request."""
        row = self.recurrent.row
        used = {row(slot) for step in self.steps.values() for slot in step.slots}
        used.update(row(slot) for slots in self.pinned_slots.values() for slot in slots)
        for live in self.live.values():
            if live is not ignoring:
                used.update(each for g in self.layout.states for each in live.groups[g])
        return used

    def free_rows(self) -> int:
        """Return how many rows of the separate pool are free for certain."""
        cached = {self.recurrent.row(slot) for slot in self.model.rows}
        return self.config.state_rows - 1 - len(self.rows_in_use() | cached)

    # --- hits ---

    def prints(self, request: Request, epoch: int | None = None) -> Fingerprints:
        """Return what each position of a request would hold if it were computed now."""
        return fingerprints(
            request.tokens,
            namespace=request.namespace,
            spans=request.spans,
            epoch=self.epoch if epoch is None else epoch,
            embedded=request.embedded,
        )

    def forecast(self, request: Request) -> Forecast:
        """Return the hits that the rules allow now, by brute force (T1, A2)."""
        prints, limit, spans = self.prints(request), len(request.tokens) - 1, request.spans
        reads = request.read and self.config.prefix_caching
        if limit < 0:
            return Forecast(prints, None, 0, 0, 0)
        if self.hits.simple and not spans:
            cached = self.model.prefix(prints, limit)
            expected = cached if reads else 0
            return Forecast(prints, None, cached, expected, expected)
        resident = self.hits.resident(prints)
        cached = listed = self.hits.search(resident, limit, spans)
        if not self.layout.full:
            listed = self.hits.search(resident, limit, spans, listed=True)
        return Forecast(prints, resident, cached, cached if reads else 0, listed if reads else 0)

    def matched(self, request: Request, forecast: Forecast) -> int:
        """Return the tokens of a request that are cached, also if they end inside a span."""
        if not (self.profile.span_clamp and request.spans):
            return forecast.expected
        resident = forecast.resident or self.hits.resident(forecast.prints)
        limit = len(request.tokens) - 1
        return self.hits.search(resident, limit, request.spans, ignoring="span")

    def expected_hit(self, request: Request) -> int:
        """Return the longest hit that the rules allow, in tokens, by brute force (T1, A2)."""
        return self.forecast(request).expected

    def computed_before(self, units: set[int], prints: Fingerprints, cached: int) -> bool:
        """Whether the unit after `cached` is one of `units`: `not_stored` or `rejected`."""
        unit = self.layout.unit
        end = cached // unit * unit + unit - 1
        return end < len(prints) - 1 and int(prints[end]) in units

    def may_store(self, live: RequestState) -> bool:
        """Whether what a request computes becomes reusable."""
        return live.request.store and self.config.prefix_caching and live.epoch == self.epoch

    # --- blocks that are shared before they are computed (T2, C4) ---

    @property
    def shares_early(self) -> bool:
        """Whether a tree puts an equal cached block into a table when a step is scheduled.

        The step then computes the same content into it; the shadow memory verifies that.
        """
        return self.profile.sharing == "when_scheduled" and self.profile.index == "tree"

    def is_equal(self, live: RequestState, group: int, index: int, block: int) -> bool:
        """Whether `block` is cached with the content of block `index` of a request."""
        size = self.layout.groups[group].block_size
        if not self.shares_early or (index + 1) * size > len(live.prints):
            return False
        entry = self.model.cached.get(block) or self.changes.victims.get(block)
        return entry is not None and entry.content == self.model.key(live.prints, index, group)

    # --- steps ---

    def step(self, live: RequestState, answer: Scheduled, known: tuple[Table, ...] | None) -> Step:
        """Return an answer's step; `known`: tables before an extension, None for an admission."""
        if answer.saves or not self.layout.single:
            return self._step(live, answer, known)
        size, blocks = self.layout.stride, live.blocks
        copied = frozenset(source for _, source, _ in answer.copies)
        if self.partial:
            copied = self.partial.around(copied)
        return Step(
            live,
            answer.start,
            answer.stop,
            copied.union(blocks),
            answer,
            fresh=blocks[answer.hit // size if known is None else len(known[0]) :],
            written=blocks[answer.start // size : -(-answer.stop // size)],
            sources=copied,
            drafts=live.drafts,
        )

    def _step(self, live: RequestState, answer: Scheduled, known: tuple[Table, ...] | None) -> Step:
        layout, recurrent = self.layout, self.recurrent
        frozen = tuple((block, g) for g, _, block in answer.saves if g in layout.attention)
        copies = frozenset(source for g, source, _ in answer.copies if g in layout.attention)
        copied = self.partial.around(copies) if self.partial else copies
        written = recurrent.written(answer) if layout.states else set()
        used = written | recurrent.read(answer) if layout.states else set()
        pooled, rows = (set(), used) if layout.separate else (used, set())
        states = set() if layout.separate else written
        sources = {source for g, source, _ in answer.copies if g in layout.states}
        touched = {
            block
            for g in layout.attention
            for block in live.groups[g][layout.first_block(g, answer.start) :]
        } - {NULL_BLOCK}
        return Step(
            live,
            answer.start,
            answer.stop,
            copied.union(touched, pooled),
            answer,
            fresh=self._fresh(live, answer, known, states),
            written=self._written(live, answer, frozen, states),
            held=frozenset(states),
            sources=copied if layout.separate else copied | sources,
            slots=frozenset(rows),
            drafts=live.drafts,
            saves=recurrent.saved(answer, live.drafts) if layout.states else (),
            frozen=frozen,
        )

    def _fresh(
        self,
        live: RequestState,
        answer: Scheduled,
        known: tuple[Table, ...] | None,
        states: set[int],
    ) -> Table:
        layout, fresh = self.layout, list[int]()
        whole = answer.hit // layout.unit * layout.unit
        for group in layout.attention:
            size = layout.groups[group].block_size
            before = whole // size if known is None else len(known[group])
            fresh += [block for block in live.groups[group][before:] if block]
        fresh += [block for g, _, block in answer.saves if g in layout.attention]
        if states:
            had = {block for g in layout.states for block in known[g]} if known else set()
            held = {b for step in self.steps.values() if step.live is live for b in step.held}
            fresh += sorted(states - had - held)
        return tuple(fresh)

    def _written(
        self,
        live: RequestState,
        answer: Scheduled,
        frozen: tuple[tuple[int, int], ...],
        states: set[int],
    ) -> Table:
        written: list[int] = []
        for group in self.layout.attention:
            size = self.layout.groups[group].block_size
            written += live.groups[group][answer.start // size : -(-answer.stop // size)]
        return (*written, *(block for block, _ in frozen), *sorted(states))

    # --- changes of the cache ---

    def allocate(self, blocks: Table) -> dict[int, Entry]:
        """Blocks that are handed out lose their identity; returns the entries that they had."""
        victims = self.model.drop_all(blocks)
        self.changes.allocated.update(blocks)
        self.changes.victims.update(victims)
        if self.evicted_in_place:
            self.evicted_in_place.difference_update(blocks)
        return victims

    def overwrite_rows(self, keys: Iterable[int]) -> None:
        """A checkpoint ends when another state is written to its row."""
        dropped = (self.model.drop_row(key) for key in keys)
        self.changes.overwritten += [entry for entry in dropped if entry]
