"""The course of requests that brings a judged server into situations, one after the other.

Between two stages it looks at the log: how many requests there were, and whether the
flood has evicted anything. It ends early when the time is over.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from kvproof.eval.divergence.orders import Life, Order
from kvproof.eval.divergence.prompts import Text
from kvproof.eval.divergence.scenes import ANSWER, EACH, Kind, Scene
from kvproof.eval.run.records import Phase
from kvproof.harness.served.request_log import RequestLog
from kvproof.harness.served.situations import COMPANY, COUNTS

Key: TypeAlias = tuple[int, Text]
"""Number of a document, and which of its prompts."""


class Step(NamedTuple):
    """One request."""

    phase: Phase
    key: Key
    salt: str = ""
    tokens: int = 0
    """Length of the answer; 0: that of the options."""
    wait: float = 0.0
    """Seconds before it."""
    metered: bool = False
    """The server's counters are read before and after it."""


class Steps(NamedTuple):
    """Requests of one stage, in order."""

    steps: Sequence[Step]
    at_once: int = 1


_BEGUN = 0.01
"""Seconds after which a server has begun with a request."""
_IDLE = 5.2
"""Seconds of a pause after which a server counts as idle."""
_FLOODS = 120
"""Most prompts that are sent to evict something."""
_FLOOD = 8
"""Those at once, between two looks."""
_CROWDS = (8, 32, 96)
"""Long new prompts at once, until one is preempted."""
WRITTEN = 128
"""Tokens of their answers."""
_TIERS = ("host", "disk", "peer")
_ROUND = 100
"""Hits between two looks at the count of requests."""
_FEW = 2
"""Long documents at a time, so that a small pool keeps them."""
_LONG: tuple[Kind, ...] = ("8k", "32k", "longest")


class Course:
    """Stages for one judged server."""

    def __init__(
        self,
        scenes: Sequence[Scene],
        wanted: frozenset[str],
        *,
        log: RequestLog,
        salt: Callable[[], str],
        flood: Callable[[Key | None], Key],
        life: Mapping[Life, Sequence[Order]],
        left: Callable[[], bool],
    ) -> None:
        """`wanted`: situations; `left`: whether time is left.

        `flood` makes a long new prompt, which may begin like another one. `life` holds orders to
        the server; between two of them entries are made that later hits must not read.
        """
        self._scenes, self._wanted, self._log, self._salt = scenes, wanted, log, salt
        self._flood, self._life, self._left = flood, life, left
        self._salts: dict[int, str] = {}

    def stages(self) -> Iterator[Steps]:
        """Yield stages while time is left."""
        for stage in self._all():
            if not self._left():
                return
            yield stage

    def _all(self) -> Iterator[Steps]:
        if "weights" in self._wanted:  # while nothing is cached that other weights may hit
            yield from self._ordered("weights")
        yield from self._twins()
        yield from self._first_hits()
        if "third-use" in self._wanted:
            yield Steps([self._hit(each) for each in self._of("block", "part", "turn")] * 2)
        if self._wanted & {"idle", "old"}:
            yield from self._pauses()
        yield from self._company()
        if "evicted" in self._wanted:
            yield from self._evictions()
        if "preempted" in self._wanted:
            yield from self._crowds()
        for name in self._life:
            if name in self._wanted and name != "weights":
                yield from self._ordered(name)
        yield from self._counts()

    def _ordered(self, name: Life) -> Iterator[Steps]:
        """Judge first the entries that an order did not remove, then new ones."""
        found, (*before, last) = self._of("block", "part"), self._life[name]
        for order in before:
            order()
            yield Steps([self._fill(each) for each in found])
        last()
        self._log.mark(name, emptied=name == "reset")
        yield Steps([self._hit(each) for each in found])
        yield from self._filled(found)

    def _of(self, *kinds: Kind) -> list[Scene]:
        return [each for each in self._scenes if each.kind in kinds]

    def _hit(self, scene: Scene, *, wait: float = 0.0, metered: bool = False) -> Step:
        salt = self._salts.get(scene.number, "")
        return Step("drawn", (scene.number, "continued"), salt, wait=wait, metered=metered)

    def _fill(self, scene: Scene) -> Step:
        if scene.kind == "salt":
            self._salts[scene.number] = self._salt()
        tokens = ANSWER if scene.kind == "turn" else 1
        return Step(
            "fill", (scene.number, "begun"), self._salts.get(scene.number, ""), tokens=tokens
        )

    def _filled(self, found: Sequence[Scene]) -> Iterator[Steps]:
        """Fill and hit in groups, so that a hit follows one of another document."""
        for kind, scenes in itertools.groupby(found, lambda each: each.kind):
            same, size = list(scenes), _FEW if kind in _LONG else EACH
            for at in range(0, len(same), size):
                group = same[at : at + size]
                yield Steps([self._fill(each) for each in group])
                yield Steps([self._hit(each) for each in group])

    def _first_hits(self) -> Iterator[Steps]:
        yield from self._filled([each for each in self._scenes if each.kind != "twin"])
        others = [Step("drawn", (e.number, "begun"), self._salt()) for e in self._of("salt")]
        others += [Step("drawn", (e.number, "elsewhere")) for e in self._of("adapter", "image")]
        if others:
            yield Steps(others)

    def _twins(self) -> Iterator[Steps]:
        """Each new prompt twice at once, after a long one that both wait for."""
        for each in self._of("twin"):
            twin = Step("drawn", (each.number, "begun"), wait=_BEGUN)
            yield Steps([Step("fill", self._flood(None), tokens=1), twin, twin], 3)

    def _pauses(self) -> Iterator[Steps]:
        """Some prompts after pauses; all others have grown old meanwhile."""
        yield Steps([self._hit(each, wait=_IDLE) for each in self._of("part")])
        yield Steps([self._hit(each) for each in self._of("block", "turn")])

    def _company(self) -> Iterator[Steps]:
        short = self._of("block", "part", "turn", "1k")
        for name, least in COMPANY.items():  # some more than needed, as some are always between two
            if short and name in self._wanted:
                times = -(-max(least, EACH) // len(short)) + (least > EACH)
                yield Steps([self._hit(each) for each in short] * times, least + least // 4)
        if "long-beside-short" in self._wanted:
            for pair in zip(self._of("1k"), self._of("block"), strict=False):
                for one, other in (pair, pair[::-1]):  # one answers for as long as the other runs
                    running = Step("fill", (one.number, "begun"), tokens=ANSWER)
                    yield Steps([running, self._hit(other, wait=_BEGUN)], 2)

    def _evictions(self) -> Iterator[Steps]:
        """Long new prompts until old ones are lost or come from every tier; then hits."""
        probes, before = self._of("part"), self._log.evictions
        wanted = self._wanted.intersection(_TIERS)
        for at in range(_FLOODS // _FLOOD):
            yield self._flooded(_FLOOD)
            yield Steps([self._hit(each, metered=True) for each in probes[at % 4 :: 4]])
            if all(map(self._log.seen.get, wanted)) and (wanted or self._log.evictions > before):
                break
        for each in probes:
            yield self._flooded(1)
            yield Steps([self._hit(each, metered=True)] * 3)

    def _flooded(self, size: int) -> Steps:
        return Steps([Step("fill", self._flood(None), tokens=1) for _ in range(size)], size)

    def _crowds(self) -> Iterator[Steps]:
        """Hits while long prompts fill the pool; the size that suffices comes twice."""
        for size in _CROWDS:
            yield self._crowd(size)
            if self._log.seen["resumed"]:
                yield self._crowd(size)
                return

    def _crowd(self, size: int) -> Steps:
        """Long prompts that begin like a document, and hits on it: running ones keep it cached."""
        steps: list[Step] = []
        probes = self._of("part")
        for each in probes:
            begun: Key = (each.number, "begun")
            steps += [
                Step("fill", self._flood(begun), tokens=WRITTEN)
                for _ in range(size // len(probes) or 1)
            ]
            steps += [self._hit(each, metered=True)] * 3
        return Steps(steps, max(1, len(steps)))

    def _counts(self) -> Iterator[Steps]:
        """Hits until the server has seen enough requests, and some more."""
        most = max((least for name, least in COUNTS.items() if name in self._wanted), default=0)
        short = [self._hit(each) for each in self._of("block", "part")]
        while most and short and self._log.count < most:
            yield Steps((short * (1 + _ROUND // len(short)))[:_ROUND])
        if most and short:
            yield Steps(short)


def steps_of(phase: Phase, keys: Iterable[Key]) -> list[Step]:
    """Return requests of one phase."""
    return [Step(phase, key) for key in keys]
