"""Host memory over a disk that fails, tears files and dies, and the model."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

from kvproof.reference.stores.object_store import Lease
from kvproof.reference.tiers.disk_tier import TEMPORARY, DiskTier
from kvproof.reference.tiers.host_tier import HostTier
from kvproof.suites.framework.component_suite import Config
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.tiers import properties as seen
from kvproof.suites.reference.tiers.files import Killed, MemoryFiles, Trouble, damaged
from kvproof.suites.reference.tiers.keys import Content, changed
from kvproof.suites.reference.tiers.model import HEADER, Entry, Model, TierModel

FOREIGN = "notes.txt"


class _Reading(NamedTuple):
    lease: Lease
    numbers: list[int]
    expected: list[tuple[TierModel, Entry]]


def key(number: int) -> bytes:
    """Return the key of an object."""
    return hashlib.sha256(b"key %d" % number).digest()


class TiersMachine:
    def __init__(self, config: Config, coverage: Coverage) -> None:
        self.config, self._coverage = config, coverage
        self.sizes: list[int] = config["sizes"]
        self.files = MemoryFiles()
        self.capacity: int = config["disk"]
        self._slack = 0
        """Bytes of others in our files."""
        self.reading: dict[int, _Reading] = {}
        self._spoilt: dict[int, bytes] = {}
        """Damaged files of objects."""
        self._opened = 0
        self._open()

    def _open(self) -> None:
        self.disk = DiskTier(self.files, self.capacity)
        self.host = HostTier(self.config["host"], below={"disk": self.disk})
        self.model = Model(self.config["host"], self.capacity, self.sizes)
        self.reading.clear()

    @property
    def doubtful(self) -> set[int]:
        """Return the objects whose file is damaged."""
        files = self.files.content
        return {n for n, data in self._spoilt.items() if files.get(key(n).hex()) == data}

    def content(self, number: int) -> bytes:
        """Return the bytes of an object."""
        return (key(number) * (self.sizes[number] // 32 + 1))[: self.sizes[number]]

    def apply(self, verb: str, **arguments: Any) -> object:
        errors, self.files.happened = self.disk.counts.errors, ""
        doubtful = self.doubtful
        try:
            answer: object = getattr(self, f"_{verb}")(**arguments)
        except Killed as death:
            self._die(str(death))
            return "killed"
        except OSError as error:
            raised = repr(error)
            self._coverage.check(
                "failures_of_the_disk_are_counted_and_harm_nobody",
                False,  # noqa: FBT003 - the judged condition
                lambda: f"{verb} raises {raised}",
            )
        if verb != "restart":
            self._judge_trouble(errors, len(doubtful))
        self._judge()
        return answer

    # --- verbs ---

    def _store(self, numbers: list[int]) -> object:
        saw = self._coverage.event
        before = self.host.keys(), self.disk.keys()
        kept = self.host.store({key(number): self.content(number) for number in numbers})
        known = {*self.host.keys(), *self.disk.keys()}
        resident = {key(number) for number in numbers} & known
        self._coverage.check(
            "a_store_says_what_it_keeps",
            kept == resident,
            lambda: f"{len(kept)} of {numbers} are reported kept, {len(resident)} are",
        )
        self.model.store(numbers)
        saw(seen.SEVERAL, len({*numbers}) > 1)
        self._cover_room(before, numbers)
        return sorted(number for number in numbers if key(number) in kept)

    def _cover_room(self, before: tuple[list[bytes], list[bytes]], numbers: list[int]) -> None:
        saw, after = self._coverage.event, (self.host.keys(), self.disk.keys())
        host, disk = (set(old) - set(new) for old, new in zip(before, after, strict=True))
        saw(seen.EVICTED["host memory"], host)
        saw(seen.EVICTED["the disk"], disk)
        saw(seen.TOO_LARGE, any(self.sizes[n] > self.config["host"] for n in numbers))
        pinned = [entry.number for entry in self.model.host.order if entry.pins]
        saw(seen.PASSED_OVER, host and pinned and before[0] and key(pinned[0]) == before[0][0])
        fits = [n for n in numbers if self.sizes[n] <= self.config["host"]]
        saw(seen.LEFT_OUT, any(key(n) not in {*after[0], *after[1]} for n in fits))

    def _read(self, numbers: list[int]) -> object:
        here, doubtful = {*self.host.keys()}, self.doubtful
        errors = self.disk.counts.errors
        there = {key(n) for n in self._numbers(self.disk.keys()) if n not in doubtful}
        lease = self.host.acquire([key(number) for number in numbers])
        self._opened += 1
        expected = self.model.read(numbers)
        got = [
            number for number, view in zip(numbers, lease.views, strict=True) if view is not None
        ]
        if self.disk.counts.errors != errors:
            expected = self._believe_read(expected, got, here)
        self.reading[self._opened] = reading = _Reading(lease, numbers, expected)
        torn = [n for n in got if n in doubtful and key(n) not in here]
        self._coverage.check(
            "torn_or_damaged_files_are_never_served",
            not torn,
            lambda: f"the files of {torn} are not what was stored, and are served",
        )
        self._judge_views(reading, "objects_come_back_as_they_were_stored")
        lost = [n for n in numbers if n not in got and key(n) in here | there]
        self._coverage.check(
            "objects_come_back_as_they_were_stored",
            self.files.happened or not lost,
            lambda: f"{lost} were there and do not come",
        )
        self._coverage.event(seen.HOST, any(key(n) in here for n in got))
        fresh = [n for n in got if key(n) not in here]
        self._coverage.event(seen.DISK, any(self.host.holds(key(n)) for n in fresh))
        self._coverage.event(seen.NO_COPY, any(not self.host.holds(key(n)) for n in fresh))
        return got

    def _end(self, reading: int) -> None:
        if reading in self.reading:
            ended = self.reading.pop(reading)
            self._judge_views(ended, "what_is_read_stays_as_it_is")
            ended.lease.release()
            ended.lease.release()
            for tier, entry in ended.expected:
                tier.unpin(entry)

    def _judge_views(self, reading: _Reading, prop: str) -> None:
        views = zip(reading.numbers, reading.lease.views, strict=True)
        wrong = [n for n, view in views if view is not None and bytes(view) != self.content(n)]
        self._coverage.check(prop, not wrong, lambda: f"the bytes of {wrong} are wrong")

    def _drop(self, numbers: list[int]) -> int:
        filed = {*numbers} & {*self._numbers(self.disk.keys())}
        dropped = self.host.drop([key(number) for number in numbers])
        self._coverage.event(seen.DROPPED, self.model.drop(numbers))
        keys = [key(number) for number in numbers]
        self._coverage.check(
            "what_is_forgotten_is_not_found",
            not any(self.host.lookup(keys)),
            lambda: f"{numbers} were dropped, and are found: {self.host.lookup(keys)}",
        )
        left = sorted(n for n in filed if key(n).hex() in self.files.content)
        self._coverage.check(
            "what_is_forgotten_is_not_found",
            self.files.happened or not left,
            lambda: f"{left} were dropped, and the next process finds their files",
        )
        return dropped

    def _clear(self) -> int:
        cleared = self.host.clear()
        self._coverage.event(seen.CLEARED, self.model.clear())
        self._coverage.check(
            "what_is_forgotten_is_not_found",
            not self.host.status().objects,
            lambda: f"after clearing there are {self.host.status()}",
        )
        return cleared

    # --- trouble ---

    def _trouble(self, how: str, after: int, cut: int) -> None:
        self.files.trouble = Trouble(how, after, cut)

    def _spoil(self, number: int, how: str) -> object:
        name = key(number).hex()
        if name not in self.files.content or number in self.doubtful:
            return None
        others = [data for other, data in self.files.content.items() if other != name]
        before = self.files.content[name]
        after = damaged(before, how, others)
        if after == before:
            return None
        self.files.content[name] = after
        self._slack += max(0, len(after) - len(before))
        self._spoilt[number] = after
        self._coverage.event(seen.DAMAGE[how.rstrip("0123456789")])
        return how

    def _put_foreign(self) -> None:
        self.files.content[FOREIGN] = b"mine"

    def _restart(self, capacity: int) -> object:
        """Start a new process; host memory is empty."""
        shrunk, self.capacity = capacity < self.capacity, capacity
        before, doubtful = dict(self.files.content), self.doubtful
        self.files.trouble = None
        self._open()
        self._judge_restart(before, doubtful)
        self._believe_disk()
        self.files.most = 0
        self._coverage.event(seen.RESTARTED, self.disk.keys())
        self._coverage.event(seen.SHRUNK, shrunk and before)
        self._coverage.event(seen.FOREIGN, FOREIGN in before)
        return len(self.disk.keys())

    def _numbers(self, keys: list[bytes]) -> list[int]:
        known = {key(number): number for number in range(len(self.sizes))}
        return [known[each] for each in keys]

    def _judge_restart(self, before: dict[str, bytes], doubtful: set[int]) -> None:
        names = {key(number).hex(): number for number in range(len(self.sizes))}
        whole = [names[name] for name in before if name in names]
        whole = [number for number in whole if number not in doubtful]
        found = self._numbers(self.disk.keys())
        kept = [number for number in whole if number in found]
        self._judge_torn(before, doubtful & {*found}, doubtful)
        room = sum(map(len, before.values())) <= self.capacity
        ours = {name for name in self.files.content if name != FOREIGN}
        self._coverage.check(
            "what_was_whole_survives_the_process",
            kept == whole[len(whole) - len(kept) :]
            and (kept == whole or not room)
            and ours == {key(number).hex() for number in found}
            and self.files.content.get(FOREIGN) == before.get(FOREIGN),
            lambda: f"{whole} were whole, {found} are found, files {sorted(self.files.content)}",
        )

    def _judge_torn(self, before: dict[str, bytes], found: set[int], doubtful: set[int]) -> None:
        """A new process counts no file that has another length than was written (G7)."""
        torn = {n for n in doubtful if len(before[key(n).hex()]) != HEADER + self.sizes[n]}
        self._coverage.event(seen.NOT_WHOLE, torn)
        self._coverage.check(
            "torn_or_damaged_files_are_never_served",
            not torn & found,
            lambda: f"the files of {sorted(torn & found)} are not whole, and a process finds them",
        )

    def _die(self, death: str) -> None:
        """End the process in the middle of an operation, and start another."""
        verb, how = death.split(": ")
        situation = (seen.KILLED if how == "killed" else seen.KILLED_AFTER).get(verb, "")
        self._coverage.event(situation, situation)
        for number in range(len(self.sizes)):
            data = self.files.content.get(key(number).hex())
            if data is not None and number not in self.doubtful:
                ok = data[HEADER:] == self.content(number)
                self._coverage.check(
                    "torn_or_damaged_files_are_never_served",
                    ok,
                    lambda: f"a process that dies leaves a torn file called {key(number).hex()}",  # noqa: B023 - judged at once
                )
        self._restart(self.capacity)

    def _judge_trouble(self, errors: int, doubtful: int) -> None:
        happened, counted = self.files.happened, self.disk.counts.errors - errors
        self._coverage.check(
            "failures_of_the_disk_are_counted_and_harm_nobody",
            counted >= bool(happened) and counted <= bool(happened) + doubtful,
            lambda: f"trouble {happened!r}, {counted} failures are counted",
        )
        verb = happened.partition(":")[0]
        self._coverage.event(seen.FULL, happened == "write: full")
        self._coverage.event(seen.BAD.get(verb, ""), verb)
        if happened or counted:
            self._believe()

    def _believe(self) -> None:
        """After a fault the model takes over the state of the tiers."""
        self.model.host.accept(self._numbers(self.host.keys()), self.host.status().bytes)
        self._believe_disk()

    def _believe_disk(self) -> None:
        held = self._numbers(self.disk.keys())
        files = {name.removesuffix(TEMPORARY) for name in self.files.content}
        left = [n for n in range(len(self.sizes)) if n not in held and key(n).hex() in files]
        self.model.disk.accept(held, self.disk.used, left)

    def _believe_read(
        self, expected: list[tuple[TierModel, Entry]], got: list[int], here: set[bytes]
    ) -> list[tuple[TierModel, Entry]]:
        """Return the objects kept for a reader of some, those `here` from host memory."""
        for _, entry in expected:
            entry.pins -= 1
        self._believe()
        host = {n for n in got if self.host.holds(key(n))}
        disk = {n for n in got if key(n) not in here}
        shelves = ((self.model.host, host), (self.model.disk, disk))
        kept = [(each, e) for each, numbers in shelves for e in each.order if e.number in numbers]
        for _, entry in kept:
            entry.pins += 1
        return kept

    # --- keys ---

    def _key(self, tokens: list[int], unit: int, part: str, what: str, *, reset: bool) -> object:
        epoch = (1, b"process") if reset or "epoch" in what else None
        one = Content(tuple(tokens), unit=unit, part=part, epoch=epoch)
        other = changed(one, what) if what else one
        self._coverage.event(seen.DIFFERENT[what] if what else seen.EQUAL)
        self._coverage.event(seen.EXTENDED)
        same = one.key() == other.key()
        self._coverage.check(
            "keys_differ_where_content_may",
            same == (one == other) and len(one.key()) * 8 >= 256,
            lambda: f"{one} and {other} have {'equal' if same else 'different'} keys",
        )
        return same

    # --- invariants ---

    def _judge(self) -> None:
        for reading in self.reading.values():
            self._judge_views(reading, "what_is_read_stays_as_it_is")
        status, most = (
            self.host.status(),
            self.files.most - len(self.files.content.get(FOREIGN, b"")),
        )
        self._coverage.check(
            "tiers_stay_within_their_bytes",
            status.bytes <= self.config["host"] and most - self._slack <= self.capacity,
            lambda: f"host memory {status}, at most {most} bytes of files for {self.capacity}",
        )
        reported = [self._numbers(tier.keys()) for tier in (self.host, self.disk)]
        expected = [self.model.host.numbers, self.model.disk.numbers]
        used = [status.bytes, self.disk.used], [self.model.host.used, self.model.disk.used]
        self._coverage.check(
            "the_least_recently_used_objects_leave_first",
            reported == expected and used[0] == used[1],
            lambda: f"the tiers hold {reported} in {used[0]} bytes, by use {expected} in {used[1]}",
        )
