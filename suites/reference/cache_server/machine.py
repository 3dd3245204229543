"""A cache server, clients that stop and die at any step, and the model."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import msgspec

from kvproof.reference.cache_server import messages as m
from kvproof.reference.cache_server.client import CacheClient
from kvproof.reference.cache_server.connection import CacheServerRefused
from kvproof.reference.cache_server.core import Settings
from kvproof.reference.stores.object_store import Lease
from kvproof.suites.framework.component_suite import Config
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.cache_server import properties as seen
from kvproof.suites.reference.cache_server.judge import StoreChecker
from kvproof.suites.reference.cache_server.local import (
    Actor,
    LocalLink,
    LocalServer,
    ProcessWitness,
)
from kvproof.suites.reference.cache_server.model import (
    Copy,
    Holding,
    Life,
    Model,
    Room,
    content,
    key,
)

KINDS = ("bytes", "cut", "version", "verb", "long", "session", "deep", "twice")


def noise(kind: str, seed: int, session: bytes) -> bytes:
    """Return a malformed message of a kind, from a client with that session."""
    draw = random.Random(seed)  # noqa: S311 - for tests
    whole = m.call(1 << 40, session, m.Reserve([key(900), key(901)], [64, 64]))
    encode = msgspec.msgpack.encode
    if kind == "bytes":
        return draw.randbytes(draw.randrange(200))
    if kind == "cut":
        return whole[: draw.randrange(len(whole))]
    if kind == "version":
        return encode([draw.randrange(2, 99), 1 << 40, session, ["clear"]])
    if kind == "verb":
        return encode([m.VERSION, 1 << 40, session, [draw.choice(("eval", "", "Status")), 1]])
    if kind == "long":
        return whole + bytes(m.MOST_BYTES)
    if kind == "session":
        return m.call(1, draw.randbytes(16), m.Reserve([key(900)], [64]))
    if kind == "deep":
        return b"\x91" * draw.randrange(2000, 100_000)
    return encode([m.VERSION, 1 << 40, session, ["reserve", [key(900)] * 4097, [64] * 4097]])


STRANGE: dict[str, m.Request] = {
    "a key twice": m.Reserve([key(900), key(900)], [64, 64]),
    "fewer sizes than keys": m.Reserve([key(900), key(901)], [64]),
    "no such reservation": m.Commit(1 << 40, [], []),
}
"""Requests that decode, and are refused."""


SILENT = ("copy", "lose", "stop", "die")
"""Verbs of a client that sends nothing for them."""
PATIENCE = 60.0
MOST_ACTORS = 4


class CacheServerMachine:
    def __init__(self, config: Config, coverage: Coverage) -> None:
        self._sizes: list[int] = config["sizes"]
        self._verify: bool = config["verify"]
        self.profile: str = config.get("profile") or config["theme"]  # op logs up to 0.13
        self._coverage = coverage
        settings = Settings(config["arena"], patience=PATIENCE)
        self.server = LocalServer(settings, witness=self._witness)
        self.model = Model(self._sizes)
        self.actors: list[Actor] = []
        self._checker = StoreChecker(self, coverage)

    def _witness(self) -> ProcessWitness:
        self._watched = ProcessWitness()
        return self._watched

    def apply(self, verb: str, *, actor: int = 0, **arguments: Any) -> object:
        """Run one operation; then check every byte in use, and the report."""
        if verb in ("join", "wait", "restart", "noise", "flip"):
            answer = getattr(self, f"_{verb}")(**arguments)
        elif self._may(verb, actor):
            answer = getattr(self, f"_{verb}")(self.actors[actor], **arguments)
        else:
            answer = None
        self._checker.everything()
        vain = sum(each.link.vain for each in self.actors)
        self._coverage.equal("a_call_happens_once", vain, 0, "waits for an answer to no call:")
        return answer

    def _may(self, verb: str, actor: int) -> bool:
        """Whether there is such a client, and it is free to send, if the verb sends something."""
        there = self.actors[actor : actor + 1]
        return any(verb in SILENT or each.acts for each in there)

    def held(self) -> set[Life]:
        return {life for actor in self.actors for life in actor.held}

    def copies(self, space: str) -> list[Copy]:
        return [copy for actor in self.actors if actor.space == space for copy in actor.copies]

    def _join(self, *, provable: bool, space: str) -> object:
        if len(self.actors) < MOST_ACTORS:
            link = LocalLink(self.server)
            client = CacheClient(link, namespace=space, verify=self._verify)
            self.actors.append(Actor(client, link, space, provable))
        return f"{len(self.actors)} clients"

    def _call(self, actor: Actor, call: Callable[[], Any]) -> Any:
        self._watched.provable = actor.provable
        before = len(self._watched.sessions)
        try:
            return call()
        finally:
            if len(self._watched.sessions) > before:
                actor.session = self._watched.sessions[-1]

    def _reserve(self, actor: Actor, *, keys: list[int]) -> object:
        numbers, lost = list(dict.fromkeys(keys)), actor.link.lose
        sizes = {key(n): self._sizes[n] for n in numbers}
        there = self.model.of(actor.space)
        present = {n: there[n] for n in numbers if n in there}  # in the order of giving them back
        idle = self.model.idle(self.held() | set(present.values()))
        reservation = self._call(actor, lambda: actor.client.reserve(sizes))
        views = {n: reservation.views[key(n)] for n in numbers if key(n) in reservation.views}
        refused = {n: reservation.refused[key(n)] for n in numbers if key(n) in reservation.refused}
        self._checker.outcomes(actor, numbers, present, views, refused, lost=bool(lost))
        copies = [Copy(n, view) for n, view in views.items()]
        actor.rooms.append(Room(reservation, copies, numbers, present))
        self._checker.evictions(idle, granted=bool(copies))
        self._checker.refusals([n for n, why in refused.items() if why == "full"])
        return f"{sorted(views)} to write, {sorted(present)} there, {refused or 'none'} refused"

    def _store(self, actor: Actor, *, keys: list[int]) -> object:
        self._reserve(actor, keys=keys)
        for at in range(len(actor.rooms[-1].copies)):
            self._copy(actor, room=len(actor.rooms) - 1, at=at, half=False)
        return self._commit(actor, room=len(actor.rooms) - 1)

    def _copy(self, actor: Actor, *, room: int, at: int, half: bool) -> object:
        if actor.gone or room >= len(actor.rooms) or at >= len(actor.rooms[room].copies):
            return None
        copy = actor.rooms[room].copies[at]
        copy.done = max(copy.done, self._sizes[copy.number] // (2 if half else 1))
        data = content(key(copy.number), self._sizes[copy.number])
        copy.view[: copy.done] = data[: copy.done]
        self._coverage.event(seen.WROTE_LATE, not copy.open)
        return f"{copy.done} bytes of {copy.number}"

    def _commit(self, actor: Actor, *, room: int, twice: bool = False) -> object:
        if room >= len(actor.rooms):
            return None
        ended = actor.rooms.pop(room)
        copies = {copy.number: copy for copy in ended.copies}
        done = {n for n, copy in copies.items() if copy.done == self._sizes[n]}
        self._coverage.event(seen.UNWRITTEN, set(copies) - done)
        stored = self._call(actor, lambda: ended.reservation.commit({key(n) for n in done}))
        for number in ended.order if not ended.void else ():
            if number in ended.present:
                self._unheld([ended.present[number]])
            elif number in done and copies[number].open:
                self.model.publish(actor.space, number)
        reported = {n for n in ended.order if key(n) in stored}
        self._checker.committed(actor, ended, reported, done)
        self._again(actor, ended.reservation.release, twice=twice)
        return f"{len(stored)} of {ended.order} are there"

    def _again(self, actor: Actor, call: Callable[[], Any], *, twice: bool) -> None:
        """End a handle once more, perhaps: nothing changes for later holders of its objects."""
        self._coverage.event(seen.TWICE, twice)
        if twice:
            self._call(actor, call)

    def _abort(self, actor: Actor, *, room: int, twice: bool = False) -> object:
        if room >= len(actor.rooms):
            return None
        ended = actor.rooms.pop(room)
        self._call(actor, ended.reservation.release)
        if not ended.void:
            self._unheld(ended.present.values())
        self._again(actor, ended.reservation.release, twice=twice)
        return f"{ended.order} given back"

    def _lookup(self, actor: Actor, *, keys: list[int]) -> object:
        flags = self._call(actor, lambda: actor.client.lookup([key(n) for n in keys]))
        self._checker.presence(actor, keys, flags)
        return flags

    def _acquire(self, actor: Actor, *, keys: list[int]) -> object:
        before = self.model.of(actor.space)
        lease = self._call(actor, lambda: actor.client.acquire([key(n) for n in keys]))
        lives = [before.get(n) for n in keys]
        actor.holdings.append(Holding(lease, lives))
        flipped = {life for life in lives if life is not None and life.flipped}
        self._checker.acquired(actor, keys, lease, lives)
        self.model.forget(flipped)
        return [view is not None for view in lease.views]

    def _release(self, actor: Actor, *, lease: int, twice: bool = False) -> object:
        if lease >= len(actor.holdings):
            return None
        ended = actor.holdings.pop(lease)
        self._call(actor, ended.lease.release)
        if not ended.void:
            self._unheld(ended.lives)
        self._again(actor, partial(self._release_again, actor, ended.lease), twice=twice)
        return "released"

    def _release_again(self, actor: Actor, lease: Lease) -> None:
        """Release an ended lease by its handle, and by its number as another program could."""
        lease.release()
        numbers = [each._number for each in getattr(lease, "_leases", [lease])]
        answer = actor.client._connection.call(m.Release(numbers))
        self._coverage.equal("a_call_happens_once", answer, m.Count(0), "a second release gives")

    def _unheld(self, lives: Iterable[Life | None]) -> None:
        held = self.held()
        for life in dict.fromkeys(lives):
            if life is not None and life not in held and not life.pins:
                self.model.use(life)

    def _drop(self, actor: Actor, *, keys: list[int]) -> object:
        return self._dropped(
            actor, set(keys), self._call(actor, lambda: actor.client.drop([key(n) for n in keys]))
        )

    def _clear(self, actor: Actor) -> object:
        spaces = {space for space, _ in self.model.there}
        self._coverage.event(seen.OTHER, spaces > {actor.space})
        everything = set(range(len(self._sizes)))
        return self._dropped(actor, everything, self._call(actor, actor.client.clear))

    def _dropped(self, actor: Actor, numbers: set[int], count: int) -> object:
        lives = [life for n, life in self.model.of(actor.space).items() if n in numbers]
        self._coverage.event(seen.HELD, self.held().intersection(lives))
        self.model.forget(lives)
        for copy in self.copies(actor.space):
            self._coverage.event(seen.WITHDRAWN, copy.open and copy.number in numbers)
            copy.open = copy.open and copy.number not in numbers
        self._checker.dropped(count, len(lives))
        return count

    def _pin(self, actor: Actor, *, name: str, keys: list[int]) -> object:
        flags = self._call(actor, lambda: actor.client.pin(name, [key(n) for n in keys]))
        share = self.server.settings.pinned_share * self.server.settings.size
        expected = [self.model.pin(actor.space, n, name, share) for n in keys]
        self._coverage.event(seen.PINNED, len(self.model.names) > 1)
        self._checker.pinned(flags, expected)
        return flags

    def _unpin(self, actor: Actor, *, name: str) -> object:
        count = self._call(actor, lambda: actor.client.unpin(name))
        lives = self.model.unpin(actor.space, name)
        self._unheld(lives)
        self._checker.pinned([count], [len(lives)])
        return count

    def _lose(self, actor: Actor) -> object:
        actor.link.lose = int(actor.acts)
        return None

    def _stop(self, actor: Actor, *, stopped: bool) -> object:
        actor.stopped = stopped
        return "stopped" if stopped else "goes on"

    def _die(self, actor: Actor) -> object:
        self._coverage.event(seen.DIED, actor.provable and (actor.held or actor.copies))
        half = any(0 < copy.done < self._sizes[copy.number] for copy in actor.copies)
        self._coverage.event(seen.HALF, actor.provable and half)
        if not actor.provable:
            actor.gone = True
            return "gone without notice"
        self.server.core.died(actor.session)
        self._ended(actor)
        self._checker.buried(actor)
        return "dead"

    def _leave(self, actor: Actor) -> object:
        actor.link.lose = 0
        actor.client.close()
        self._coverage.event(seen.LEFT, self.model.names)
        self._ended(actor)
        self._checker.buried(actor)
        return "gone"

    def _ended(self, actor: Actor) -> None:
        self.actors.remove(actor)
        while actor.rooms or actor.holdings:  # in the order in which the server takes them back
            ended: Room | Holding = (actor.rooms or actor.holdings).pop(0)
            lives = ended.present.values() if isinstance(ended, Room) else ended.lives
            self.actors.append(actor)
            if not ended.void:
                self._unheld(lives)
            self.actors.remove(actor)

    def _wait(self) -> object:
        self.server.time += PATIENCE + 10
        self.server.core.tick()
        for actor in self.actors:
            for copy in actor.copies:
                copy.silent = copy.silent or copy.open
                copy.open = False
        return f"{self.server.time:g} s"

    def _restart(self) -> object:
        copies = any(actor.copies for actor in self.actors)
        self._coverage.event(seen.RESTARTED, self.held() and copies)
        self.server.restart()
        self.model = Model(self._sizes)
        for actor in self.actors:
            actor.session = b""
            for room in actor.rooms:
                room.void = True
            for holding in actor.holdings:
                holding.void = True
        return "restarted"

    def _noise(self, *, kind: str, seed: int) -> object:
        session = next((actor.session for actor in self.actors if actor.acts), b"")
        frame = noise(kind, seed, session)
        self._coverage.event(seen.NOISE)
        return self._checker.refused(frame)

    def _strange(self, actor: Actor, *, kind: str) -> object:
        try:
            self._call(actor, lambda: actor.client._connection.call(STRANGE[kind]))
        except CacheServerRefused as refused:
            return refused.reason
        self._checker.not_refused(kind)
        return "done"

    def _flip(self, *, number: int) -> object:
        """Change a byte of an idle object, as only a faulty client could."""
        held = self.held()
        lives = [life for life in self.model.there.values() if life not in held and self._verify]
        if lives:
            life = lives[number % len(lives)]
            entry = self.server.core.spaces[life.space].index[key(life.number)]
            self.server.arena[entry.offset] ^= 1
            life.flipped = not life.flipped
        return None
