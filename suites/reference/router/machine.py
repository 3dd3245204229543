"""Workers, the way of their messages, and the router that gets them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from kvproof.suites.framework.component_suite import IGNORED, Arguments, Config, RemoteCalls
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.router import properties as seen
from kvproof.suites.reference.router.engines import Heard, Path, Rank, lacks, run

ANY = -1
"""All ranks of a worker, or all workers."""


class Process(NamedTuple):
    """A worker since its start."""

    start: int
    ranks: list[Rank]


class Place(NamedTuple):
    """A rank of a worker."""

    name: int
    rank: int


class RouterMachine:
    """Every operation on a cache is one message; offers are compared after each that arrives."""

    def __init__(self, ask: RemoteCalls, config: Config, coverage: Coverage) -> None:
        self._ask, self._coverage = ask, coverage
        self.prompts: list[Path] = [tuple(each) for each in config["prompts"]]
        self.late: bool = config["late"]
        """Messages arrive by operations of their own."""
        self.gaps: bool = config["gaps"]
        self.tiers: int = config["tiers"]
        self.ranks: int = config["ranks"]
        self.workers: int = config["workers"]
        self._config = config
        self.running: dict[int, Process] = {}
        self.heard: dict[Place, Heard] = {}
        """Messages of each rank since the newest start that the router knows."""
        self._known = [0] * config["workers"]
        """Oldest start of each worker that counts for the router."""
        self._starts = [0] * config["workers"]
        self.way: dict[Place, list[tuple[int, int, Rank]]] = {}
        """Start, number and sender of the messages that are on their way."""
        ask(("open", {"tiers": self.tiers}))
        for name in range(config["workers"]):
            self._start(name=name)

    def apply(self, verb: str, **arguments: Any) -> object:
        """Run one operation, and compare all offers of the router."""
        return getattr(self, f"_{verb}")(**arguments)

    def waiting(self) -> list[Place]:
        """Return the ranks with messages on their way."""
        return [place for place, messages in self.way.items() if messages]

    # --- workers ---

    def _start(self, *, name: int) -> object:
        """Start a worker, or start it anew; the old one ends without a word."""
        start = self._starts[name]
        self._starts[name] += 1
        old = self.running.pop(name, None)
        if old and not self.late:
            self._ended(name, old.start)
        salt = "" if self._config["alike"] else f"{name}/{start}/"
        ranks = [Rank(self.tiers, salt) for _ in range(self.ranks)]
        self.running[name] = Process(start, ranks)
        self._coverage.event(seen.RESTARTED, old and any(each.log for each in old.ranks))
        return start

    def _leave(self, *, name: int) -> object:
        """End a worker, and report that to the router."""
        if name not in self.running:
            return IGNORED
        old = self.running.pop(name)
        self._ended(name, old.start)
        return old.start

    def _ended(self, name: int, start: int) -> None:
        known = self._forget(name)
        self._coverage.event(seen.LEFT, any(any(each.state) for each in known))
        self._known[name] = start + 1
        self._judge(seen.OUTLIVED, Place(name, ANY), ("leave", {"name": name, "start": start}))

    def _forget(self, name: int) -> list[Heard]:
        return [self.heard.pop(place) for place in [*self.heard] if place.name == name]

    def _rank(self, name: int, rank: int) -> Rank | None:
        process = self.running.get(name)
        return process.ranks[rank % self.ranks] if process else None

    def _store(
        self, *, name: int, rank: int, prompt: int, length: int, again: int, chunk: int
    ) -> object:
        cache = self._rank(name, rank)
        if cache is None:
            return IGNORED
        path = self.prompts[prompt][:length]
        before = [path[:n] for n in range(1, len(path) + 1) if cache.tiers[0][path[:n]]]
        held = len(path) if again < 0 else again
        cache.store(path, tier=0, again=held if self._config["copies"] else len(path), chunk=chunk)
        new = {path[:n] for n in range(1, len(path) + 1)} - {*before}
        self._coverage.event(seen.CHURN, new & cache.evicted)
        closed = {gap for gap in new & cache.gaps if cache.tiers[0][gap]}
        self._coverage.event(seen.CLOSED, any(cache.followed(gap, 0) for gap in closed))
        return self._send(name, rank, cache)

    def _evict(self, *, name: int, rank: int, tier: int, picks: list[int], turned: bool) -> object:
        cache = self._rank(name, rank)
        if cache is None:
            return IGNORED
        tier %= self.tiers
        paths: list[Path] = []
        left = sorted(cache.tiers[tier])
        for pick in picks:
            some = left if self.gaps else [p for p in left if not _goes_on(p, left)]
            if some:
                paths.append(some[pick % len(some)])
                left.remove(paths[-1])
        self._coverage.event(seen.TWICE, any(cache.tiers[tier][path] > 1 for path in paths))
        cache.remove(reversed(paths) if turned else paths, tier=tier)
        self._coverage.event(seen.GAP, self.gaps and cache.gaps.intersection(paths))
        return self._send(name, rank, cache)

    def _lower(self, *, name: int, rank: int, tier: int, pick: int, move: bool) -> object:
        """Copy a chain to the next tier, and drop its end above."""
        cache = self._rank(name, rank)
        if cache is None or self.tiers == 1:
            return IGNORED
        tier %= self.tiers - 1
        leaves = cache.leaves(tier)
        if not leaves:
            return IGNORED
        path = leaves[pick % len(leaves)]
        cache.store(path, tier=tier + 1, again=len(path), chunk=len(path))
        if move:
            cache.remove([path], tier=tier)
        return self._send(name, rank, cache)

    def _clear(self, *, name: int, rank: int, tier: int) -> object:
        cache = self._rank(name, rank)
        if cache is None:
            return IGNORED
        one = tier % self.tiers if self.tiers > 1 and tier >= 0 else None
        self._coverage.event(seen.CLEARED if one is None else seen.ONE_TIER, any(cache.tiers))
        cache.clear(one)
        return self._send(name, rank, cache)

    def _send(self, name: int, rank: int, cache: Rank) -> object:
        if not cache.send():
            return IGNORED
        place = self._place(name, rank)
        number = len(cache.log) - 1
        self.way.setdefault(place, []).append((self.running[name].start, number, cache))
        if not self.late:
            self._deliver(name=name, rank=rank, at=0, keep=False)
        return cache.log[number].events

    # --- the way of messages ---

    def _deliver(self, *, name: int, rank: int, at: int, keep: bool) -> object:
        """Let a message arrive; `keep`: it is on its way once more."""
        place = self._place(name, rank)
        messages = self.way.get(place, [])
        if at >= len(messages):
            return IGNORED
        start, number, cache = messages[at] if keep else messages.pop(at)
        self._arrive(place, start, number, cache)
        return [start, number]

    def _repeat(self, *, name: int, rank: int) -> object:
        """Let the newest message of a rank arrive once more."""
        cache, place = self._rank(name, rank), self._place(name, rank)
        if self.late or cache is None or not cache.log:
            return IGNORED
        self._arrive(place, self.running[name].start, len(cache.log) - 1, cache)
        return len(cache.log) - 1

    def _lose(self, *, name: int, rank: int, at: int) -> object:
        messages = self.way.get(self._place(name, rank), [])
        if at >= len(messages):
            return IGNORED
        self._coverage.event(seen.LOST)
        return messages.pop(at)[:2]

    def _answer(self, *, name: int, rank: int) -> object:
        """Send the missing messages, or the whole cache in their place."""
        place = self._place(name, rank)
        cache, heard = self._rank(name, rank), self.heard.get(place)
        if cache is None or heard is None or heard.cache is not cache or not heard.missing:
            return IGNORED
        start = self.running[name].start
        first, last = heard.missing
        if first < len(cache.log) - self._config["kept"]:
            self._coverage.event(seen.WHOLE)
            self._arrive(place, start, len(cache.log) - 1, cache, whole=True)
            return "the whole cache"
        self._coverage.event(seen.REPLAYED)
        for number in range(first, last + 1):
            self._arrive(place, start, number, cache)
        return [first, last]

    def _place(self, name: int, rank: int) -> Place:
        return Place(name, rank % self.ranks)

    def _arrive(
        self, place: Place, start: int, number: int, cache: Rank, *, whole: bool = False
    ) -> None:
        events = [*cache.whole()] if whole else cache.log[number].events
        message = {"start": start, "number": number, "whole": whole, "events": events}
        kind = self._noted(place, start, number, cache, whole=whole)
        if not kind and any(each[0] == "cleared" for each in events):
            kind = seen.CLEAR
        changed = Place(place.name, ANY) if kind == seen.OUTLIVED else place
        missing = self._judge(kind, changed, ("receive", {"worker": [*place], "message": message}))
        if self._config["order"]:
            counts = place in self.heard and start == self._known[place.name]
            expected = self.heard[place].missing if counts else []
            what = f"after message {number} of worker {place.name} the router asks for"
            self._coverage.equal(seen.ASKED, missing, expected, what)

    def _noted(self, place: Place, start: int, number: int, cache: Rank, *, whole: bool) -> str:
        """Note a message; return the property that it is about, if it is about one."""
        known = self._known[place.name]
        if start < known:
            self._coverage.event(seen.LATE)
            return seen.OUTLIVED
        if start > known:
            self._forget(place.name)
            self._known[place.name] = start
        heard = self.heard.setdefault(place, Heard(cache))
        repeated = number < heard.next or number in heard.early
        heard.hear(number, whole=whole)
        self._coverage.event(seen.REPEATED, repeated)
        self._coverage.event(seen.OVERTAKEN, heard.early)
        self._coverage.event(seen.RANKS, self.ranks > 1)
        return seen.OUTLIVED if start > known else seen.REPEAT if repeated else ""

    def _copy(self) -> object:
        """Go on with another router, made from a dump of this one."""
        self._coverage.event(seen.COPIED, self.heard)
        for place in [p for p, each in self.heard.items() if each.early]:
            del self.heard[place]  # the copy asks for all of it
        self._judge(seen.COPY, Place(ANY, ANY), ("copy", {}))
        return None

    # --- judging ---

    def _judge(self, kind: str, changed: Place, call: tuple[str, Arguments]) -> Any:
        """Make a call, and compare all offers after it; returns its answer.

        `kind`: the property about the changed caches, empty: those about each message.
        """
        prompts = [[*each] for each in self.prompts]
        answer, offers = self._ask(call, ("offers", {"prompts": prompts}))
        for prompt, each in zip(self.prompts, offers, strict=True):
            found = {Place(name, rank): blocks for name, rank, blocks in each}
            self._cover(prompt)
            for place in sorted({*found, *self._all()}):
                mine = changed.name in (ANY, place.name) and changed.rank in (ANY, place.rank)
                claim = found.get(place, [0] * self.tiers)
                self._compare(kind if mine else seen.ALONE, place, prompt, claim)
        return answer

    def _all(self) -> Iterator[Place]:
        for name in range(self.workers):
            yield from (Place(name, rank) for rank in range(self.ranks))

    def _cover(self, prompt: Path) -> None:
        runs = [run(each.state, prompt) for each in self.heard.values()]
        held = [sum(each) for each in runs]
        self._coverage.event(seen.SHARED, sum(map(bool, held)) > 1)
        self._coverage.event(seen.FORK, any(0 < each < len(prompt) for each in held))
        self._coverage.event(seen.LOWER, any(each[0] and any(each[1:]) for each in runs))

    def _compare(self, kind: str, place: Place, prompt: Path, claim: list[int]) -> None:
        heard = self.heard.get(place)
        newest = heard.cache.state(heard.newest) if heard else ()
        beyond = lacks(newest, prompt, claim) if heard else any(claim)
        expected = run(heard.state, prompt) if heard else [0] * self.tiers
        open_gap = bool(heard and heard.early)
        short = claim != expected and not open_gap
        facts = {
            "claim": sum(claim),
            "expected": sum(expected),
            "beyond": beyond,
            "behind": bool(heard and heard.cache.behind(prompt[: sum(claim)])),
        }

        def sentence() -> str:
            demand = "nothing until its gap is closed" if open_gap else expected
            return (
                f"worker {place.name}, rank {place.rank}, is offered for {claim} blocks of "
                f"{[*prompt]} by tier, expected {demand}"
            )

        self._coverage.check(kind or seen.BEYOND, not beyond, sentence, facts=facts)
        self._coverage.check(kind or seen.HELD, not short, sentence, facts=facts)


def _goes_on(path: Path, others: list[Path]) -> bool:
    return any(len(other) > len(path) and other[: len(path)] == path for other in others)
