"""One cache of a running engine: its lines are kept, judged, and counted as they come.

A watcher that is late judges a smaller share of the new requests, until it keeps up again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from kvproof.harness.oracle.shadow_memory import SLOT_BYTES
from kvproof.harness.recorder.recording import (
    BEGINS,
    Header,
    Line,
    Place,
    apart,
    read_header,
    read_line,
)
from kvproof.harness.recorder.ring import RingReader
from kvproof.harness.recorder.verdict import Broken, RunningCheck
from kvproof.harness.watch.counts import Counts
from kvproof.harness.watch.incidents import MOST, write_incident
from kvproof.harness.watch.tail import Tail

TOO_LATE, CAUGHT_UP = 0.5, 0.1
"""Seconds late from which the share may be halved, and below which it is doubled again."""

_EACH = 0.25
"""Seconds between two changes of the share."""

LEAST = 1 / 256
"""The smallest share."""

_REST = 1.0
"""Seconds between the beginnings of two checks: each goes through all requests."""


class Kept(NamedTuple):
    """The place and the extent of an incident."""

    folder: Path
    seconds: float = 60.0
    most: int = 64 << 20
    """Bytes in memory for each cache."""


class Incident(NamedTuple):
    """A violation while the engine runs."""

    target: str
    property: str
    message: str
    folder: Path | None
    """None: enough of them are written, or the disk is full."""


@dataclass
class _Follower:
    """The state that begins anew with each header."""

    header: Header
    tail: Tail
    zero: float
    """Unix time of the recording's millisecond 0."""
    check: RunningCheck | None
    """None: it ended with a violation, and the next one has not begun."""


class WatchedCache:
    """Reads one ring."""

    def __init__(
        self, ring: RingReader, kept: Kept, clock: Callable[[], float] = time.time
    ) -> None:
        self.ring, self.name = ring, ring.path.stem
        self.counts = Counts()
        self.faults: list[str] = []
        """Errors of the watcher's own; lines after one are not judged until the next check."""
        self.stopped = ""
        """Why the recorder gave up; empty: it did not."""
        self.first: Incident | None = None
        """The first violation."""
        self._kept, self._clock = kept, clock
        self._now: _Follower | None = None
        self._chance = random.Random(0)  # noqa: S311 - no secret
        self._looked = self._begun = 0.0
        self._was_late = 0.0
        """How late it was at the latest look at the share."""
        self._before = 0, 0
        """Slots and hits of earlier checks."""

    @property
    def header(self) -> Header | None:
        """The cache, once its first line has come."""
        return self._now.header if self._now else None

    @property
    def memory(self) -> int:
        """Bytes that its shadow, its ring and its last seconds take at most."""
        slots = self._now.header.num_blocks * self._now.header.block_size if self._now else 0
        return slots * SLOT_BYTES + self.ring.size + 2 * self._kept.most

    def work(self, seconds: float) -> list[Incident]:
        """Read the new lines, for at most so long; returns the violations."""
        found: list[Incident] = []
        until = self._clock() + seconds
        while self._clock() < until and (text := self.ring.take()) is not None:
            self.counts.lines += 1
            incident = self._guarded(text)
            if incident:
                found.append(incident)
        self.counts.lost = self.ring.dropped
        self._add_up()
        return found

    def _guarded(self, text: bytes) -> Incident | None:
        try:
            if text.startswith(b'{"kvproof"'):
                self._begin(text)
            elif self._now:
                return self._take(self._now, text)
        except Exception as error:  # noqa: BLE001 - one line must not end the watch
            self.faults.append(f"{type(error).__name__}: {error}")
            self._end_check()
        return None

    def _begin(self, text: bytes) -> None:
        header = read_header(self.ring.path, text)
        tail = Tail(text, seconds=self._kept.seconds, most=self._kept.most)
        self._end_check()
        check = RunningCheck(header, trusting=header.segment > 1)
        self._now = _Follower(header, tail, header.unix - tail.begun / 1000, check)

    def _end_check(self) -> None:
        self._add_up()
        self._before = self.counts.slots, self.counts.hit_tokens
        if self._now:
            self._now.check = None

    def _add_up(self) -> None:
        """Add the figures of the present check to those of the earlier ones."""
        if self._now and self._now.check:
            result, (slots, hit) = self._now.check.result(), self._before
            self.counts.slots = slots + result.slots_compared
            self.counts.hit_tokens = hit + result.hit_tokens

    def _take(self, now: _Follower, text: bytes) -> Incident | None:
        lines = list(apart(read_line(text)))
        now.tail.take(lines, text)
        if now.check is None and lines and self._clock() - self._begun > _REST:
            self._resume(now, lines[-1])
            for line in lines:
                self._count(line, judged=False)
            return None
        return self._judge_all(now, lines)

    def _judge_all(self, now: _Follower, lines: list[Line]) -> Incident | None:
        """Judge the lines of one text; after a violation the rest of them is not judged."""
        found = None
        for line in lines:
            self.stopped = line.reason or self.stopped
            found = self._judge(now, line) or found
        return found

    def _resume(self, now: _Follower, line: Line) -> None:
        """Begin a new check after `line`: it trusts the content of all blocks.

        A request that breaks a property as it is now is passed over.
        """
        self._begun = self._clock()
        now.check = self._checked(now, line, frozenset())

    def _checked(self, now: _Follower, line: Line, passed: frozenset[int]) -> RunningCheck:
        check = RunningCheck(now.header, trusting=True)
        for carried in now.tail.opening(line.t):
            if check.take(self._place(), carried, judged=carried.n not in passed):
                return self._checked(now, line, passed | {carried.n})
        return check

    def _place(self) -> Place:
        return Place(Path(self.name), self.counts.lines)

    def _judge(self, now: _Follower, line: Line) -> Incident | None:
        check = now.check
        chosen = line.op not in BEGINS or self._draw()
        broken = check.take(self._place(), line, judged=chosen) if check else None
        self._count(line, judged=check is not None and not check.passes(line.n) and chosen)
        self._adapt(max(0.0, self._clock() - now.zero - line.t / 1000))
        if broken is None:
            return None
        return self._violated(now, broken)

    def _violated(self, now: _Follower, broken: Broken) -> Incident:
        counts, prop = self.counts, broken.violation.property
        counts.violations[prop] += 1
        self._end_check()
        self._begun, folder = self._clock(), None
        if counts.incidents < MOST:
            with suppress(OSError):  # a full disk does not end the watch
                folder = write_incident(
                    self._kept.folder, self.name, now.header, broken, counts, now.tail
                )
                counts.incidents += 1
        found = Incident(now.header.target, prop, str(broken), folder)
        self.first = self.first or found
        return found

    def _count(self, line: Line, *, judged: bool) -> None:
        if line.op == "carry":
            return
        tokens = (len(line.tokens) - 1) * 3 // 4 // (8 if line.tokens[:1] == "q" else 4)
        self.counts.requests += line.op == "admit"
        self.counts.tokens += tokens
        self.counts.judged_tokens += tokens if judged else 0

    # --- the share that is judged ---

    def _draw(self) -> bool:
        """Choose by chance: requests that come in turns must not be chosen in turns."""
        return self._chance.random() < self.counts.share

    def _adapt(self, late: float) -> None:
        """Halve the share where the delay grows beyond `TOO_LATE`, double it where it is short."""
        counts, now = self.counts, self._clock()
        counts.late, counts.latest = late, max(counts.latest, late)
        if now - self._looked < _EACH:
            return
        grows = late > TOO_LATE and (late >= self._was_late or late > 2 * TOO_LATE)
        factor = 0.5 if grows else 2.0 if late < CAUGHT_UP else 1.0
        counts.share = min(1.0, max(LEAST, counts.share * factor))
        self._looked, self._was_late = now, late
