"""The traffic between two engines: messages, and copies from one memory into the other.

Copies end late, in any order, and may fail in part; messages are late, lost or repeated. Nothing
here is ordered by a stream: another machine's network card reads and writes memory when it likes.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvproof.harness.whole_engine.clock import VirtualClock
from kvproof.harness.whole_engine.failed_loads import LOST
from kvproof.harness.whole_engine.findings import Findings
from kvproof.harness.whole_engine.transfers import Transfer

HELD = "blocks_are_held_until_they_are_read"
ARRIVE, DROPPED, TWICE = range(3)
"""Fates of a message."""
APART = (0, 0, 1, 5)
"""Ticks by which the copies of one request end apart, where several workers have one each."""


@dataclass(frozen=True)
class Endpoint:
    """One engine's end of the wire."""

    device: Any
    """Its ShadowDevice."""
    held: Callable[[str], Collection[int]]
    """Request -> blocks that the engine's manager holds for it now."""
    rank: int = 0
    """Number of the worker within its engine."""
    name: str = ""
    """Name by which messages reach it."""


@dataclass(frozen=True)
class Piece:
    """Bytes of one layer that go from a block of one engine into a block of the other."""

    read: int
    written: int
    move: Callable[[], object]


@dataclass
class Copy:
    """Blocks on their way from one engine to the other."""

    request: str
    transfer: Transfer
    lost: Collection[int]
    """Blocks of the copy that do not arrive."""

    @property
    def state(self) -> str:
        """`under way`, `done` or `failed`."""
        if not self.transfer.done:
            return "under way"
        return "failed" if self.lost else "done"


@dataclass
class Wire:
    """Messages and copies between the engines of one history."""

    findings: Findings
    clock: VirtualClock
    seed: int = 0
    """Seed of the messages' delays and of the threads' order."""
    delay: int = 0
    """Most ticks between sending and arrival of messages that are sent now."""
    fate: int = ARRIVE
    """Fate of messages that are sent now."""
    refuses: bool = False
    """A request for an engine's addresses gets no answer."""
    copies: int = 1
    """Copies of one request: each pair of workers that share heads has one."""
    unequal: bool = False
    """The engines have unlike numbers of workers."""
    claimed: bool = True
    """A handshake that fails is a finding: the engines' configurations are said to fit."""
    leases: dict[str, float] = field(default_factory=dict)
    """Request -> time until which its blocks are promised to be held."""
    _renewed: dict[tuple[str, str], float] = field(default_factory=dict)
    """(Request, worker that holds the blocks) -> the same, as the worker was asked since."""
    _mail: dict[str, list[tuple[int, str, bytes]]] = field(default_factory=dict)
    _behind: dict[tuple[str, str, bytes], str] = field(default_factory=dict)
    """Message that follows a copy -> request of the copy."""
    _ended: dict[str, set[tuple[str, str]]] = field(default_factory=dict)
    """Request -> sender and receiver of each copy whose message has arrived."""

    def __post_init__(self) -> None:
        """Start the sequence of delays."""
        self._lateness = random.Random(self.seed)  # noqa: S311 - reproducible, not secret

    def send(self, sender: str, to: str, message: bytes) -> None:
        """Put a message under way."""
        if self.fate == DROPPED:
            self.broke("a message between engines is lost", self._named(message))
        self.findings.saw("a message between engines arrives twice", self.fate == TWICE)
        due = self.clock.tick + self._lateness.randint(0, self.delay)
        times = (1, 0, 2)[self.fate]
        self._mail.setdefault(to, []).extend([(due, sender, message)] * times)

    def follow(self, sender: str, to: str, message: bytes, request: str) -> None:
        """Send the message that follows a copy after the copy has ended well."""
        self._behind[sender, to, message] = request
        self.send(sender, to, message)

    def _note(self, fact: str, **found: object) -> None:
        """Add to a fact of every violation from now on."""
        known = self.findings.context.get(fact, {})
        assert isinstance(known, dict)
        self.findings.context[fact] = {**known, **found}

    def coin(self) -> bool:
        """Decide which of two threads of an engine comes first."""
        return self._lateness.random() < 0.5

    def broke(self, what: str, requests: Iterable[str], why: str = "") -> None:
        """Note that something of these requests did not come to the other engine, or too late."""
        self.findings.saw(what)
        self._note("broken", **dict.fromkeys(requests, f"{what}: {why}" if why else what))

    def _named(self, message: bytes) -> list[str]:
        """Return the requests that a message names: connectors write it, each in its own way."""
        return [
            name
            for name in self.leases
            if re.search(re.escape(name.encode()) + rb"(?!\d)", message)
        ]

    def take(self, to: str) -> dict[str, list[bytes]]:
        """Return the messages that have arrived, by sender."""
        mail, found = self._mail.get(to, []), dict[str, list[bytes]]()
        self._mail[to] = [each for each in mail if each[0] > self.clock.tick]
        for due, sender, message in mail:
            if due <= self.clock.tick:
                self._note_lateness(to, message)
                if request := self._behind.get((sender, to, message)):
                    self._arrive(request, (sender, to))
                found.setdefault(sender, []).append(message)
        return found

    def _arrive(self, request: str, way: tuple[str, str]) -> None:
        """Note that the end of a copy was reported; a request has arrived with its last one."""
        ended = self._ended.setdefault(request, set())
        self.findings.repeats(happened=way in ended)
        if way in ended:
            self._note("repeated", **{request: self.clock.tick})
        ended.add(way)
        if len(ended) == self.copies:
            self._note("arrived", **{request: self.clock.tick})

    def _note_lateness(self, to: str, message: bytes) -> None:
        now = self.clock.now()
        over = [name for name in self._named(message) if now >= self._lease(name, to)]
        if over:
            self.broke("a message arrives after the lease of its request", over)

    def promise(self, request: str, seconds: float) -> None:
        """Note that a request's blocks are held for so long from now on, at least."""
        self.leases[request] = self.clock.now() + seconds

    def renew(self, request: str, seconds: float, worker: str) -> None:
        """Note that one worker's lease was renewed, if it has not ended."""
        now = self.clock.now()
        if now < (lease := self._lease(request, worker)) < float("inf"):
            self._renewed[request, worker] = max(now + seconds, lease)

    def _lease(self, request: str, worker: str) -> float:
        """Return until when a worker promises to hold a request's blocks."""
        return self._renewed.get((request, worker), self.leases.get(request, float("inf")))

    def copy(
        self,
        request: str,
        source: Endpoint,
        target: Endpoint,
        pieces: Sequence[Piece],
        then: Callable[[], None],
    ) -> Copy:
        """Put pieces of blocks under way; `then` follows if all of them arrive."""
        reads = sorted({each.read for each in pieces})
        writes = list(dict.fromkeys(each.written for each in pieces))
        lost = {writes[at] for at in target.device.losses.pick(len(writes))}
        self._check_held(request, source, reads)

        def run() -> None:
            self._check_held(request, source, reads)
            for each in pieces:
                if each.written not in lost:
                    each.move()
            target.device.memory.of(0).received[writes] = True
            if known := target.device.requests.get(request):
                size = [len(known.request.prompt), len(writes)]
                self._note("loaded_for", **{str(block): size for block in writes})
            for block in lost:
                target.device.memory.lose(block, LOST, epoch=target.device.epoch, rank=target.rank)
            if not lost:
                then()

        if lost:
            target.device.losses.requests.add(request)
        self.findings.saw("blocks go from one engine to the other")
        self.findings.saw("blocks go to an engine with another number of workers", self.unequal)
        if lost:
            self.broke("a copy between engines fails in part", [request])
        self._note("loaded_by", **{str(block): request for block in writes})
        transfer = target.device.transfer(
            run,
            stream=f"wire {target.device.transfers.count}",
            ordered=False,
            writes=writes,
            part_of=request,
            late=self._lateness.choice(APART) if self.copies > 1 else 0,
        )
        return Copy(request, transfer, lost)

    def _check_held(self, request: str, source: Endpoint, reads: Sequence[int]) -> None:
        gone = sorted(set(reads).difference(source.held(request)))
        over = self.clock.now() >= self._lease(request, source.name)
        if gone and over:
            self._note("read_after_its_lease", **{request: self.clock.tick})
            self.findings.saw("blocks are read after their lease has ended")
        self.findings.check(
            HELD,
            over or not gone,
            lambda: (
                f"blocks {gone} of {request} are read by the other engine, and the engine that "
                "computed them holds them no more, before the lease has ended"
            ),
        )
