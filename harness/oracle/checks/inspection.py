"""Checks of a target's reports between operations: counts, holders, events, digests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple, NoReturn

from kvproof.harness.contract import operations as ops
from kvproof.harness.contract.target import CacheEvent, Inspection, Refused
from kvproof.harness.model.fingerprints import MASK, mix, root, sums
from kvproof.harness.oracle.state import OracleState
from kvproof.harness.oracle.violation import INVARIANT, METAMORPHIC, Violation, fail

_USAGE = "usage_adds_up"
_HELD = "held_blocks_are_those_in_tables"
_CACHED = "cached_blocks_are_those_stored"
_HOLDERS = "holders_equal_tables_and_pins"
_STATISTICS = "hits_are_counted_once"
_SHARED = "equal_blocks_are_shared"
_PARENTS = "no_block_outlives_its_parent"
_BESIDE = "sidecars_stay_with_their_blocks"
_EVENTS = "events_replay_to_the_index"

_DIGESTED = ("usage", "holders", "state")
"""Fields of an inspection that a refusal and a lookup leave as they were."""


class _Stored(NamedTuple):
    """A block that an event has stored."""

    content: int
    """Fingerprint at the block's end, with the group mixed in."""
    total: int
    """Sum of what all its tokens and spans add."""
    space: int
    """Number of the namespace and epoch of its chain."""
    length: int
    """Tokens up to the block's end."""
    parent: str
    """Key of the block before; empty for the first one of a chain."""


class InspectionChecks:
    """Compares inspections of a target with the state of one history."""

    def __init__(self, state: OracleState) -> None:
        self._state = state
        self._layout = state.layout
        self._counts = state.checks
        self._pool = state.model.pool
        self._statistics = [0, 0, 0, 0]
        """Queries, hits, and both of resumed requests, in tokens."""
        self._index: dict[str, _Stored] = {}
        """Key of a stored event -> its block."""
        self._after = Counter[str]()
        """Key -> stored blocks that follow it."""
        self._cleared = 0
        self._keys: dict[str, int] = {}
        """Key of any block so far -> how often the index had been cleared when it was stored."""
        self._replays = state.profile.events and bool(state.layout.full)
        self._shares = state.profile.duplicates == "shared"
        self._tree = state.profile.index == "tree"
        self._version = -1
        """Version of the pool's contents that the events were last compared with."""

    def run(self, before: Inspection, found: Inspection, held: Mapping[int, int]) -> None:
        """Compare an inspection with the one before, the holders and the cache model."""
        state = self._state
        operation, answer = state.history[-1]
        refused = isinstance(answer, Refused)
        if (refused or isinstance(answer, int)) and not isinstance(operation, ops.Pin):
            self._nothing_changed(before, found, refused=refused)
        self._usage(found)
        unsettled = state.unsettled()
        if unsettled:
            unsettled -= held.keys()
        self._held(found, held, len(unsettled))
        self._idle(found, held, len(unsettled))
        if state.profile.holders:
            self._holders(found, held)
        if state.profile.statistics and found.statistics is not None:
            self._hits_are_counted_once(found)
        if self._shares:
            self._copies()
        if self._tree:
            self._orphan()
        if state.layout.sidecars and found.dropped is not None:
            self._beside()
        if self._replays:
            self._events(found)

    # --- counts ---

    def _usage(self, found: Inspection) -> None:
        usage, total = found.usage, self._state.config.num_blocks - 1
        whole = usage.free + usage.held + usage.cached == usage.total == total
        self._counts[_USAGE] += 1
        if not whole or min(usage.free, usage.held, usage.cached) < 0:
            fail(
                self._state,
                _USAGE,
                INVARIANT,
                f"free {usage.free} + held {usage.held} + cached {usage.cached} is not the pool "
                f"of {total} blocks",
            )

    def _held(self, found: Inspection, held: Mapping[int, int], unsettled: int) -> None:
        self._counts[_HELD] += 1
        if not len(held) <= found.usage.held <= len(held) + unsettled:
            fail(
                self._state,
                _HELD,
                INVARIANT,
                f"{found.usage.held} blocks count as held, tables and pins hold {len(held)}: "
                f"{sorted(held)}",
            )

    def _idle(self, found: Inspection, held: Mapping[int, int], unsettled: int) -> None:
        idle = self._state.model.cached.keys() - held.keys()
        self._counts[_CACHED] += 1
        if not len(idle) - unsettled <= found.usage.cached <= len(idle):
            fail(
                self._state,
                _CACHED,
                INVARIANT,
                f"{found.usage.cached} blocks count as cached, {len(idle)} are stored without a "
                f"holder: {sorted(idle)}",
                facts={"idle": frozenset(idle), "cached": found.usage.cached},
            )

    def _holders(self, found: Inspection, held: Mapping[int, int]) -> None:
        """With several groups no profile declares the holders of states that are copied."""
        self._counts[_HOLDERS] += 1
        expected, reported = dict(held), found.holders
        if expected == reported:
            return
        if not self._layout.single:
            moot = self._undeclared()
            expected = {block: n for block, n in expected.items() if block not in moot}
            reported = {block: n for block, n in reported.items() if block not in moot}
        differs = (b for b in {*expected, *reported} if expected.get(b) != reported.get(b))
        if wrong := min(differs, default=0):
            mine, theirs = expected.get(wrong, 0), reported.get(wrong, 0)
            fail(
                self._state,
                _HOLDERS,
                INVARIANT,
                f"block {wrong} counts {theirs} holders, tables and pins say {mine}",
                suspects=(wrong,),
            )

    def _undeclared(self) -> set[int]:
        state, layout = self._state, self._layout
        found = {b for fenced in state.fenced if not fenced.confirmed for b in fenced.blocks}
        if layout.separate:
            return found
        found.update(b for step in state.steps.values() for b in (*step.held, *step.sources))
        for live in state.live.values():
            found.update(block for g in layout.states for block in live.groups[g])
        cached = state.model.cached.items()
        return found | {block for block, entry in cached if entry.group in layout.states}

    def _hits_are_counted_once(self, found: Inspection) -> None:
        counted, total = found.statistics, self._statistics
        assert counted is not None
        operation, record = self._state.history[-1]
        request = getattr(operation, "request", None)
        hit = getattr(record, "hit", None)
        if hit is not None and request and request.read and self._state.config.prefix_caching:
            first = 2 if request.resumed else 0
            total[first] += len(request.tokens)
            total[first + 1] += hit
        found_counts = (
            counted.queries,
            counted.hits,
            counted.resumed_queries,
            counted.resumed_hits,
        )
        expected = tuple(
            None if own is None else each for own, each in zip(found_counts, total, strict=True)
        )
        self._counts[_STATISTICS] += 1
        if found_counts != expected:
            fail(
                self._state,
                _STATISTICS,
                INVARIANT,
                f"statistics say (queries, hits, resumed queries, resumed hits) {found_counts}, "
                f"admissions add up to {expected}",
                facts={"counted": found_counts, "total": total},
            )

    # --- the index ---

    def _copies(self) -> None:
        """Equal content is cached once (T2)."""
        self._counts[_SHARED] += 1
        if not self._pool.copied:
            return
        copies = self._state.model.duplicates() or set()
        fail(
            self._state,
            _SHARED,
            INVARIANT,
            f"blocks {sorted(copies)} hold the same content twice",
            suspects=tuple(sorted(copies)),
        )

    def _beside(self) -> None:
        """A block and that of its sidecar are cached together, or not at all (Q2)."""
        self._counts[_BESIDE] += 1
        alone = self._state.model.apart()
        if alone is None:
            return
        sentence = f"block {alone} is cached, and the one beside it, of the same tokens, is gone"
        fail(self._state, _BESIDE, INVARIANT, sentence, suspects=(alone,))

    def _orphan(self) -> None:
        """No block of a tree outlives the block before it (T3)."""
        self._counts[_PARENTS] += 1
        if not self._pool.orphans:
            return
        orphan = self._state.model.orphan() or 0
        sentence = f"block {orphan} is cached although the block before it is gone"
        fail(self._state, _PARENTS, INVARIANT, sentence, suspects=(orphan,))

    def _nothing_changed(self, before: Inspection, found: Inspection, *, refused: bool) -> None:
        prop = "refusal_changes_nothing" if refused else "lookup_changes_nothing"
        changed = [n for n in _DIGESTED if getattr(before, n) != getattr(found, n)]
        self._counts[prop] += 1
        if changed:
            words = ", ".join(
                f"{name}: {getattr(before, name)} became {getattr(found, name)}"
                if name != "state"
                else "the digest of free order, index, recency and statistics"
                for name in changed
            )
            fail(
                self._state,
                prop,
                METAMORPHIC,
                f"a {prop.split('_')[0]} left a trace in {words}",
                facts={"before": before, "found": found, "changed": tuple(changed)},
            )

    def _events(self, found: Inspection) -> None:
        """The events so far, replayed, give the index (V4)."""
        for event in found.events:
            self._replay(event)
        before, self._version = self._version, self._pool.version
        self._counts[_EVENTS] += 1
        if before == self._version and not found.events:
            return  # equal since the last comparison
        index = {stored.content for stored in self._index.values()}
        expected = self._state.model.contents()
        if index != expected or len(index) != len(self._index):
            fail(
                self._state,
                _EVENTS,
                INVARIANT,
                f"replayed events give {len(self._index)} blocks, {len(expected)} are stored; "
                f"{len(index - expected)} only in the events, {len(expected - index)} only stored",
            )

    def _replay(self, event: CacheEvent) -> None:
        if event.kind == "cleared":
            self._index.clear()
            self._after.clear()
            self._cleared += 1
        elif event.kind == "removed":
            self._removed(event)
        else:
            if event.key not in self._index:
                self._after[event.parent] += 1
            self._index[event.key] = self._stored(event)
            if self._keys.setdefault(event.key, self._cleared) != self._cleared:
                self._wrong(event, "a key from before the index was cleared")

    def _removed(self, event: CacheEvent) -> None:
        """A parent goes after its children: a router drops a block with all that follow it."""
        self._known(event.key, event)
        if following := self._after[event.key]:
            self._wrong(event, f"a block that {following} stored blocks follow")
        self._after[self._index.pop(event.key).parent] -= 1

    def _known(self, key: str, event: CacheEvent) -> None:
        if key not in self._index:
            self._wrong(event, f"block {key[:12]}, which no event has stored")

    @staticmethod
    def _wrong(event: CacheEvent, what: str) -> NoReturn:
        raise Violation(_EVENTS, INVARIANT, f"a {event.kind} event names {what}")

    def _stored(self, event: CacheEvent) -> _Stored:
        salt = self._layout.salts[self._layout.full[0]]  # an event of several groups is of a unit
        total, space, first = 0, int(root(event.namespace, self._state.epoch)), 0
        if event.parent:
            self._known(event.parent, event)
            _, total, space, first, _ = self._index[event.parent]
        added = sums(event.tokens, first=first, spans=event.spans, embedded=event.embedded)
        total = total + int(added[-1] if len(added) else 0) & MASK
        content, length = mix(total) ^ space ^ int(salt), first + len(event.tokens)
        return _Stored(content, total, space, length, event.parent)
