"""The properties of a whole target between operations: counts, holders, events, digests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvproof.harness.contract import operations as ops
from kvproof.harness.contract.target import CacheEvent, Inspection, Refused
from kvproof.harness.oracle import shadow_memory as shadow
from kvproof.harness.oracle.checks.eviction import Drops
from kvproof.harness.oracle.violation import INVARIANT, METAMORPHIC, Violation

if TYPE_CHECKING:
    from kvproof.harness.oracle.session import Session

_USAGE = "usage = target.inspect().usage"


class Audit:
    """Inspects the target after every operation and compares it with what was seen."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._check = session.check
        self._queries = self._hits = self._resumed_queries = self._resumed_hits = 0
        self._index: dict[str, tuple[int, int]] = {}
        """Key of a stored event -> (fingerprint at the block's end, tokens up to there)."""
        self._layout = session.layout
        self._drops = Drops(session)
        self.last: Inspection = session.target.inspect()
        self._before = self.last

    def inspect(self) -> None:
        """Ask the target, and follow what it dropped."""
        self._before, self.last = self.last, self._session.target.inspect()
        self._session.host.inspected(self.last)
        self._drops.take(self._before, self.last.dropped)

    def run(self, answer: object) -> None:
        """Judge the state after an operation that gave `answer`."""
        self._questions_change_nothing(self._before, answer)
        self._usage_adds_up()
        self._held_blocks_are_in_tables()
        self._holders_equal_tables()
        self._hits_are_counted_once()
        self._equal_blocks_are_shared()
        self._chains_lose_their_ends_first()
        self._events_replay_to_the_index()

    def _usage_adds_up(self) -> None:
        usage, total = self.last.usage, self._session.config.num_blocks - 1
        self._check(
            "usage_adds_up",
            INVARIANT,
            usage.free + usage.held + usage.cached == usage.total == total
            and min(usage.free, usage.held, usage.cached) >= 0,
            lambda: (
                f"free {usage.free} + held {usage.held} + cached {usage.cached} is not the "
                f"pool of {total} blocks"
            ),
            assertion="usage.free + usage.held + usage.cached == usage.total "
            f"== {total} and min(usage.free, usage.held, usage.cached) >= 0",
        )

    def _held_blocks_are_in_tables(self) -> None:
        usage, session = self.last.usage, self._session
        held = set(session.holders())
        unsettled = session.unsettled() - held
        self._check(
            "held_blocks_are_those_in_tables",
            INVARIANT,
            len(held) <= usage.held <= len(held) + len(unsettled),
            lambda: (
                f"{usage.held} blocks count as held, tables and pins hold {len(held)}: "
                f"{sorted(held)}"
            ),
            assertion=f"usage.held == {len(held)}",
        )
        idle = set(session.ledger.cached) - held
        self._check(
            "cached_blocks_are_those_stored",
            INVARIANT,
            len(idle) - len(unsettled) <= usage.cached <= len(idle),
            lambda: (
                f"{usage.cached} blocks count as cached, {len(idle)} are stored and held by "
                f"nobody: {sorted(idle)}"
            ),
            assertion=f"usage.cached == {len(idle)}",
        )

    def _holders_equal_tables(self) -> None:
        session = self._session
        if not session.profile.holders:
            return
        expected = dict(session.holders())
        reported = self.last.holders
        if not self._layout.single:  # who counts as holder of what is copied is not declared
            moot = {b for fenced in session.fenced if not fenced.sure for b in fenced.blocks}
            moot |= session.states.blocks()
            expected = {block: n for block, n in expected.items() if block not in moot}
            reported = {block: n for block, n in reported.items() if block not in moot}
        wrong = next(
            (b for b in sorted({*expected, *reported}) if expected.get(b) != reported.get(b)), 0
        )
        self._check(
            "holders_equal_tables_and_pins",
            INVARIANT,
            not wrong,
            lambda: (
                f"block {wrong} counts {reported.get(wrong, 0)} holders, tables and pins say "
                f"{expected.get(wrong, 0)}"
            ),
            assertion=f"target.inspect().holders.get({wrong}, 0) == {expected.get(wrong, 0)}",
            suspects=(wrong,),
        )

    def _questions_change_nothing(self, before: Inspection, answer: object) -> None:
        session = self._session
        refused = isinstance(answer, Refused)
        if not refused and not isinstance(answer, int):
            return
        prop = "refusal_changes_nothing" if refused else "lookup_changes_nothing"
        if isinstance(session.history[-1][0], ops.Pin):
            return
        parts = ("usage", "holders", "state")
        changed = [n for n in parts if getattr(before, n) != getattr(self.last, n)]
        self._check(
            prop,
            METAMORPHIC,
            not changed,
            lambda: (
                f"a {prop.split('_')[0]} left a trace in "
                + ", ".join(
                    f"{name}: {getattr(before, name)} became {getattr(self.last, name)}"
                    if name != "state"
                    else "the digest of free order, index, recency and statistics"
                    for name in changed
                )
            ),
            assertion=f"all(getattr(target.inspect(), n) == getattr(before, n) for n in {parts})",
        )

    def _hits_are_counted_once(self) -> None:
        session, counted = self._session, self.last.statistics
        if not session.profile.statistics or counted is None:
            return
        operation, record = session.history[-1]
        request = getattr(operation, "request", None)
        hit = getattr(record, "hit", None)
        if hit is not None and request and request.read and session.config.prefix_caching:
            if request.resumed:
                self._resumed_queries += len(request.tokens)
                self._resumed_hits += hit
            else:
                self._queries += len(request.tokens)
                self._hits += hit
        expected = (self._queries, self._hits, self._resumed_queries, self._resumed_hits)
        found = (counted.queries, counted.hits, counted.resumed_queries, counted.resumed_hits)
        self._check(
            "hits_are_counted_once",
            INVARIANT,
            found == expected,
            lambda: (
                f"statistics say (queries, hits, resumed queries, resumed hits) {found}, "
                f"admissions add up to {expected}"
            ),
            assertion=f"target.inspect().statistics == HitStatistics{expected}",
        )

    def _equal_blocks_are_shared(self) -> None:
        session = self._session
        if session.profile.duplicates != "shared":
            return
        copies = session.ledger.duplicates()
        self._check(
            "equal_blocks_are_shared",
            INVARIANT,
            copies is None,
            lambda: f"blocks {sorted(copies or ())} hold the same content twice",
            assertion=f"not {set(copies or ())} <= blocks_of(records)",
            suspects=tuple(sorted(copies or ())),
        )

    def _chains_lose_their_ends_first(self) -> None:
        session = self._session
        if session.profile.index != "tree":
            return
        orphan = session.ledger.orphan()
        self._check(
            "no_block_outlives_its_parent",
            INVARIANT,
            orphan is None,
            lambda: f"block {orphan} is cached although the block before it is gone",
            suspects=(orphan or 0,),
        )

    def _events_replay_to_the_index(self) -> None:
        session = self._session
        if not session.profile.events or not self._layout.full:
            return
        for event in self.last.events:
            self._replay(event)
        found = {content for content, _ in self._index.values()}
        expected = session.ledger.contents()
        self._check(
            "events_replay_to_the_index",
            INVARIANT,
            found == expected and len(found) == len(self._index),
            lambda: (
                f"replayed events give {len(self._index)} blocks, {len(expected)} are stored; "
                f"{len(found - expected)} only in the events, {len(expected - found)} only stored"
            ),
        )

    def _replay(self, event: CacheEvent) -> None:
        if event.kind == "cleared":
            self._index.clear()
        elif event.kind == "removed":
            self._known(event.key, event)
            del self._index[event.key]
        else:
            self._index[event.key] = self._content(event)

    def _known(self, key: str, event: CacheEvent) -> None:
        if key not in self._index:
            raise Violation(
                "events_replay_to_the_index",
                INVARIANT,
                f"a {event.kind} event names block {key[:12]}, which no event has stored",
            )

    def _content(self, event: CacheEvent) -> tuple[int, int]:
        """Fingerprint of a stored block from its parent and its own identity inputs."""
        salt = self._layout.salts[self._layout.full[0]]  # an event of several groups is of a unit
        base, first = shadow.root(event.namespace, self._session.epoch), 0
        if event.parent:
            self._known(event.parent, event)
            content, first = self._index[event.parent]
            base = np.uint64(content) ^ salt
        added = shadow.terms(np.asarray(event.tokens, dtype=np.int64), first)
        for span in event.spans:
            here = span.start - first
            added[here : here + 1] += shadow.mark(span)
        total = np.concatenate(([base], added)).sum(dtype=np.uint64) ^ salt
        return int(total), first + len(event.tokens)
