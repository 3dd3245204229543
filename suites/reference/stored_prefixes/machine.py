"""One engine of a server that keeps chunks, and the expected content of the server.

Another engine, with numbers of another type, only queries the chunks of the first one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

from kvproof.suites.framework.component_suite import Arguments, Config, RemoteCalls
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.stored_prefixes import properties as seen
from kvproof.suites.reference.stored_prefixes.model import (
    BLOCK,
    BLOCKS,
    CHUNK,
    CHUNKS,
    EACH,
    TENANTS,
    Added,
    Key,
    Model,
    Pending,
    ids_of,
)
from kvproof.suites.reference.stored_prefixes.pages import ENGINE, NULL, OTHER, UNTOUCHED, Pages

PATIENCE_S = 5.0
"""Longest wait for background work of the server; a failure takes as long."""
SHORT_PATIENCE_S = 0.5
"""Longest wait after a refused call, which leaves no work."""
MOST_PENDING = 3
ROOM = 8 << 20
NUMBERS = "bfloat16"


class PrefixesMachine:
    """The subject is a server, `model` its expected content."""

    def __init__(self, ask: RemoteCalls, config: Config, coverage: Coverage) -> None:
        self._ask, self._coverage = ask, coverage
        self.trouble: bool = config["trouble"]
        self.other: str = config.get("other", "")
        """Type of the other engine's numbers; none: there is no other engine."""
        self.model = Model(config["windows"], config["seed"], config["forks"])
        self._requests = map("request-{}".format, count())
        reported = self._opened(separate=config["separate"])
        self.model.parts, self.model.needed = reported["parts"], reported["windows"]

    def apply(self, verb: str, **arguments: Any) -> object:
        """Run one operation, and judge it."""
        return getattr(self, "_look_up" if verb == "ask" else f"_{verb}")(**arguments)

    def _opened(self, *, separate: bool) -> Any:
        engines = {OTHER: self.other} if self.other else {}
        return self._ask(
            ("open", {"room": ROOM, "eviction": "LRU", "separate": separate}),
            *(
                ("engine", {"instance": instance, "tables": self._tables(numbers)})
                for instance, numbers in {**engines, ENGINE: NUMBERS}.items()
            ),
        )[-1]

    def _tables(self, numbers: str) -> list[Arguments]:
        return [
            {"blocks": BLOCKS, "block": BLOCK, "row": row, "window": window, "type": numbers}
            for row, window in zip(self.model.rows, self.model.windows, strict=True)
        ]

    # --- stores ---

    def _store(
        self, *, sequence: int, salt: str, start: int, end: int, ahead: int, first: int
    ) -> object:
        tokens = self.model.sequences[sequence]
        computed = end * CHUNK + ahead
        null = [
            {b for b in range(start * EACH, end * EACH) if not self.model.sees(g, computed, b)}
            for g in range(len(self.model.windows))
        ]
        ids = [ids_of(first, start * EACH, end * EACH, without=each) for each in null]
        named = self._named(tokens, salt, start, end)
        _, *_, (well, kept) = self._ask(
            ("fill", {"instance": ENGINE, "byte": NULL}),
            *(self._computed(g, salt, tokens, start, each) for g, each in enumerate(ids)),
            ("store", {"ids": ids, **named}),
        )
        self._over(named["request"])
        expected = self._added(sequence, salt, range(start, end), null)
        self._coverage.check(
            "a_store_tells_what_it_kept",
            well and kept in (expected, None),
            lambda: f"chunks {start} to {end} were stored as {kept}, expected {expected}",
        )
        return kept

    def _added(
        self, sequence: int, salt: str, stored: range, null: Sequence[set[int]]
    ) -> list[bool]:
        """Whether each chunk was added whole; of one with a hole, the server decides (G10)."""
        named = self._named(self.model.sequences[sequence], salt, 0, stored.stop)
        there = self._ask(*(("there", {"part": p, **named}) for p in range(len(self.model.parts))))
        kept = []
        for at in stored:
            added = self.model.add(sequence, salt, at, null, [each[at] for each in there])
            self._coverage.event(seen.AGAIN, added.again)
            self._coverage.event(seen.EMPTY, added.empty)
            self._coverage.event(seen.PARTLY, added.partly)
            if added.left:
                self._judge_left_out(at, added)
            kept.append(added.whole)
        return kept

    def _judge_left_out(self, at: int, added: Added) -> None:
        self._coverage.check(
            "what_a_window_left_is_not_served",
            not added.hollow,
            lambda: f"chunk {at} is there, of which only null blocks were stored",
        )

    def _computed(
        self, group: int, salt: str, tokens: Sequence[int], start: int, ids: Sequence[int]
    ) -> tuple[str, Arguments]:
        blocks = {
            str(block): self.model.content(group, salt, tokens, start * EACH + at).hex()
            for at, block in enumerate(ids)
            if block
        }
        return "write", {"instance": ENGINE, "table": group, "blocks": blocks}

    # --- look-ups and retrieves ---

    def _look_up(self, *, sequence: int, salt: str, most: int) -> object:
        if len(self.model.pending) >= MOST_PENDING:
            return self._quit(number=0)
        tokens = self.model.sequences[sequence]
        named = self._named(tokens, salt, 0, most)
        (found,) = self._ask(("ask", named))
        expected = self.model.longest(tokens, salt, most)
        self._coverage.check(
            "prefix_hits_are_the_longest",
            found in expected,
            lambda: (
                f"{found} chunks of sequence {sequence} were found, expected "
                f"{' or '.join(map(str, sorted(expected)))}"
            ),
        )
        self._coverage.hits[str(found)] += 1
        self._cover_hit(sequence, salt, found)
        if not found:
            self._over(named["request"])
            return 0
        keys = frozenset(self.model.used(tokens, salt, found))
        self.model.pending.append(Pending(named["request"], salt, tokens, found, keys))
        return found

    def _cover_hit(self, sequence: int, salt: str, found: int) -> None:
        tokens = self.model.sequences[sequence]
        used = set(self.model.used(tokens, salt, found))
        every = {(p, salt, tokens[: (at + 1) * CHUNK]) for p in range(len(self.model.parts))
                 for at in range(found)}  # fmt: skip
        others = {s for _, s, prefix in self.model.there if s != salt and prefix == tokens[:CHUNK]}
        self._coverage.event(seen.HIT if found else seen.MISS)
        self._coverage.event(seen.FORK, {self.model.writer[key] for key in used} - {sequence})
        self._coverage.event(seen.GAPS, every - self.model.there.keys())
        self._coverage.event(seen.TENANT, others)

    def _take(self, *, number: int, start: int, skip: int, nulls: bool, first: int) -> object:
        """Retrieve from chunk `start` on, for an engine that has the chunks before."""
        if number >= len(self.model.pending):
            return None
        pending = self.model.pending.pop(number)
        start = min(start, pending.hit - 1)
        blocks = range(start * EACH, pending.hit * EACH)
        skip = min(skip, len(blocks) - 1)
        ids = [
            ids_of(first, blocks.start, blocks.stop, without={
                b for b in blocks if nulls and not self.model.sees(g, pending.hit * CHUNK, b)
            })
            for g in range(len(self.model.windows))
        ]  # fmt: skip
        named = self._named(pending.tokens, pending.salt, start, pending.hit)
        named["request"] = pending.request
        _, well = self._ask(
            ("fill", {"instance": ENGINE, "byte": UNTOUCHED}),
            ("take", {"ids": ids, "skip": skip * BLOCK, **named}),
        )
        self._coverage.check(
            "what_was_found_can_be_taken", well, lambda: f"{pending.hit} chunks were found and lost"
        )
        if start:
            self._ask(("free", {**named, "start": 0, "end": start * CHUNK}))
        self._over(pending.request)
        self._coverage.event(seen.LATER, start)
        self._coverage.event(seen.SKIP, skip)
        self._coverage.event(seen.NULLS, any(0 in each for each in ids))
        Pages(self._ask, self._coverage, self.model).judge(pending, start, skip, ids)
        return pending.hit

    def _ask_as_other(self, *, sequence: int, salt: str, most: int) -> object:
        """Look up and retrieve chunks of an engine with numbers of another type (H6)."""
        if not self.other:
            return None
        tokens = self.model.sequences[sequence]
        named = self._named(tokens, salt, 0, most, instance=OTHER)
        (found,) = self._ask(("ask", named))
        self._coverage.event(seen.OTHER, self.model.serves(tokens, salt, 1))
        ids = ids_of(0, 0, found * EACH, without=set())
        if found:
            named["end"], named["tokens"] = found * CHUNK, list(tokens[: found * CHUNK])
            self._ask(
                ("fill", {"instance": OTHER, "byte": UNTOUCHED}),
                ("take", {"ids": [ids for _ in self.model.windows], **named}),
            )
        self._over(named["request"])
        Pages(self._ask, self._coverage, self.model).judge_other(tokens, salt, ids, self.other)
        return found

    def _quit(self, *, number: int) -> object:
        if number >= len(self.model.pending):
            return None
        pending = self.model.pending.pop(number)
        named = self._named(pending.tokens, pending.salt, 0, pending.hit)
        self._ask(("free", {**named, "request": pending.request}))
        self._coverage.event(seen.GIVEN_UP)
        self._over(pending.request)
        return pending.request

    # --- deletions and evictions ---

    def _drop(self, *, sequence: int, salt: str, at: int, part: int) -> object:
        part %= len(self.model.parts)
        tokens = self.model.sequences[sequence]
        key = part, salt, tokens[: (at + 1) * CHUNK]
        held = key in self.model.locked()
        named = self._named(tokens, salt, 0, at + 1)
        ((deleted, locked),) = self._ask(("delete", {"part": part, "last": 1, **named}))
        expected = (int(key in self.model.there and not held), int(held))
        gone = (deleted, locked)
        self._coverage.equal("what_was_found_can_be_taken", gone, expected, "(deleted, locked):")
        self._coverage.event(seen.HELD, self.model.pending)
        if deleted:
            del self.model.there[key]
        return deleted

    def _evict(self, *, share: float) -> object:
        """No locked object is evicted."""
        (count_,) = self._ask(("evict", {"share": share}))
        kept = self._found_by_name()
        gone = self.model.there.keys() - kept
        self._coverage.check(
            "what_was_found_can_be_taken",
            not gone & self.model.locked(),
            lambda: f"{len(gone & self.model.locked())} objects went that a request has found",
        )
        self._coverage.event(seen.EVICTED, gone)
        self._coverage.event(seen.HELD, self.model.pending and gone)
        self.model.there = {key: holes for key, holes in self.model.there.items() if key in kept}
        return count_

    def _found_by_name(self) -> set[Key]:
        names = [
            (part, salt, tokens)
            for part in range(len(self.model.parts))
            for salt in sorted(set(TENANTS))
            for tokens in self.model.sequences
        ]
        calls = [("there", {"part": p, **self._named(t, s, 0, CHUNKS)}) for p, s, t in names]
        return {
            (part, salt, tokens[: (at + 1) * CHUNK])
            for (part, salt, tokens), reported in zip(names, self._ask(*calls), strict=True)
            for at, there in enumerate(reported)
            if there
        }

    # --- refusals ---

    def _short_store(self, *, sequence: int, salt: str, start: int, end: int) -> object:
        self._coverage.event(seen.SHORT_STORE)
        few = ids_of(0, start * EACH, end * EACH, without=set())[:-1]
        return self._refused_store(sequence, salt, start, end, few)

    def _wrong_store(self, *, sequence: int, salt: str, start: int, end: int) -> object:
        """The last block does not exist; chunks stored already are not copied again."""
        if self.model.stored(self.model.sequences[sequence], salt, end - 1):
            return None
        self._coverage.event(seen.WRONG_STORE)
        wrong = [*ids_of(0, start * EACH, end * EACH, without=set())[:-1], BLOCKS]
        return self._refused_store(sequence, salt, start, end, wrong)

    def _refused_store(
        self, sequence: int, salt: str, start: int, end: int, ids: list[int]
    ) -> object:
        named = self._named(self.model.sequences[sequence], salt, start, end)
        every = [ids for _ in self.model.windows]
        ((well, kept),) = self._ask(("store", {"ids": every, **named}))
        self._coverage.check(
            "a_refused_call_leaves_nothing",
            not any(kept or ()),
            lambda: f"of a store that cannot be carried out {kept} was kept",
        )
        self._over(named["request"], refused=True)
        return well

    def _short_take(self, *, number: int) -> object:
        if number >= len(self.model.pending) or self.model.shared(number):
            return None
        pending = self.model.pending.pop(number)
        named = self._named(pending.tokens, pending.salt, 0, pending.hit)
        few = ids_of(0, 0, pending.hit * EACH, without=set())[:-1]
        (well,) = self._ask(
            ("take", {"ids": [few for _ in self.model.windows], **named,
                      "request": pending.request})
        )  # fmt: skip
        self._coverage.event(seen.SHORT_TAKE)
        self._coverage.check(
            "a_refused_call_leaves_nothing", not well, lambda: "blocks that are missing were filled"
        )
        self._over(pending.request, refused=True)
        return well

    def _over(self, request: str, *, refused: bool = False) -> None:
        """End a request: only the locks of other look-ups remain."""
        prop = "a_refused_call_leaves_nothing" if refused else "locks_end_with_their_request"
        locked, patience_s = len(self.model.locked()), SHORT_PATIENCE_S if refused else PATIENCE_S
        _, now = self._ask(
            ("end", {"request": request}), ("rest", {"locked": locked, "patience_s": patience_s})
        )
        left = now["staging_object_count"], now["read_locked_count"]
        self._coverage.check(
            prop,
            left == (0, locked),
            lambda: (
                f"after {request} {left[0]} objects are reserved and {left[1]} locked, "
                f"expected 0 and {locked}"
            ),
            facts={"reserved": left[0], "locks": left[1] - locked},
        )

    def _named(
        self, tokens: Sequence[int], salt: str, start: int, end: int, *, instance: int = ENGINE
    ) -> Arguments:
        return {
            "instance": instance,
            "request": next(self._requests),
            "tokens": list(tokens[: end * CHUNK]),
            "start": start * CHUNK,
            "end": end * CHUNK,
            "salt": salt,
        }
