"""Sessions over a cache manager, and a model of the blocks that each holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kvproof.reference.cache.cache_manager import CacheManager
from kvproof.reference.cache.hooks import Answer
from kvproof.reference.cache.request_state import AdmitRequest, Refusal
from kvproof.reference.cache.sessions import Sessions
from kvproof.reference.core.attention_groups import GroupConfig
from kvproof.reference.core.cache_config import CacheConfig
from kvproof.suites.framework.component_suite import IGNORED, Config
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.sessions import properties as seen


@dataclass
class Talk:
    """Model of one session."""

    held: bool
    idle: float
    used: float
    history: str = ""
    table: list[list[int]] = field(default_factory=list)
    """Blocks that it holds, by group; empty: none."""
    kept: int = 0
    turn: str = ""
    text: str = ""
    """Tokens of its turn, the history included."""
    stale: bool = False
    """The cache was reset during its turn, which caches nothing."""
    orphan: bool = False
    """A fork whose parent has closed."""


class SessionMachine:
    """Every step ends at once; turns and other requests live on until an operation ends them."""

    def __init__(self, config: Config, coverage: Coverage) -> None:
        self._coverage = coverage
        self._block: int = config["block"]
        self._room: int = config["blocks"] - 1
        window = config["window"]
        groups = [GroupConfig("full", self._block)]
        if window:
            groups.append(GroupConfig("window", self._block, window))
        self._plain = len(groups) == 1
        self.manager = CacheManager(
            CacheConfig(config["blocks"], block_size=self._block, groups=tuple(groups))
        )
        self._chunk = None if self._plain else 1
        """Windows go token by token: alone in the pool a request that fits is never stuck then."""
        self._now = 0.0
        self.sessions = Sessions(self.manager, lambda: self._now)
        self.talks: dict[str, Talk] = {}
        self.requests: dict[str, str] = {}
        self._content: dict[int, str] = {}
        """Block of full attention -> the text up to its end."""
        self._count = self._step = 0
        self._parents: dict[str, str] = {}

    def apply(self, verb: str, /, **arguments: Any) -> object:
        """Run one operation and compare (see `Machine`)."""
        answer = getattr(self, verb)(**arguments)
        self._kept()
        self._counts()
        return answer

    # --- life ---

    def open(self, *, held: bool, idle: float) -> object:
        """Open a session."""
        name = self._name("s")
        self.sessions.open(name, retention="held" if held else "cached", idle=idle)
        self.talks[name] = Talk(held, idle, self._now)
        return name

    def fork(self, which: int) -> object:
        """Open a session with the turns of another one."""
        if not self.talks:
            return IGNORED
        parent, name = self._talk(which), self._name("s")
        talk = self.talks[parent]
        longest = self._cached(talk.history)
        child = self.sessions.fork(parent, name)
        new = Talk(talk.held, talk.idle, self._now, talk.history)
        self._equal(seen.FORKS, _text(child.history), talk.history, f"{name} has the turns")
        self.talks[name] = new
        self._parents[name] = parent
        self._holds(name, longest)
        if talk.table:
            self._equal(seen.FORKS, new.table, talk.table, f"{name}, a fork, holds")
        self._coverage.event(seen.FORKED, talk.history)
        return f"{name} from {parent}"

    def close_session(self, which: int) -> object:
        """Close a session."""
        if not self.talks:
            return IGNORED
        name = self._talk(which)
        self._coverage.event(seen.CLOSED, self.talks[name].table)
        self._ended([name], lambda: [name] if self.sessions.close(name) else [])
        return name

    def wait(self, seconds: float) -> object:
        """Let time pass; sessions expire."""
        self._now += seconds
        ages = {name: self._now - talk.used for name, talk in self.talks.items()}
        late = [n for n, talk in self.talks.items() if not talk.turn and ages[n] >= talk.idle]
        near = [n for n, talk in self.talks.items() if n not in late and ages[n] >= talk.idle - 1]
        self._coverage.event(seen.LATE, late)
        self._coverage.event(seen.IN_TIME, near)
        self._ended(late, self.sessions.expire)
        return late

    def _ended(self, names: list[str], end: Callable[[], list[str]]) -> None:
        before = self._hits(names)
        self._equal(seen.ENDS, end(), names, "the sessions that ended are")
        self._equal(
            seen.ENDS,
            [*self.sessions.open_ones],
            [n for n in self.talks if n not in names],
            "open:",
        )
        self._equal(seen.ENDS, self._hits(names), before, "hits after the end of a session are")
        for name in names:
            del self.talks[name]
        for child, parent in self._parents.items():
            if parent in names and child in self.talks:
                self.talks[child].orphan = True

    def _hits(self, names: list[str]) -> list[int]:
        texts = [self.talks[name].history + "?" for name in names]
        return [self.manager.lookup(_tokens(text)) for text in texts]

    # --- turns ---

    def turn(self, which: int, text: str) -> object:
        """Begin a turn and compute it."""
        name = self._talk(which) if self.talks else ""
        if not name or self.talks[name].turn:
            return IGNORED
        talk, request = self.talks[name], self._name("t")
        whole = talk.history + text
        begin = partial(self.sessions.begin, name, request, _tokens(text), compute=self._chunk)
        answer = self._ask(whole, name, request, begin)
        if isinstance(answer, Refusal):
            return answer.reason
        found = _text(bytes(self.manager.live[request].tokens))
        self._equal(seen.FORKS if talk.orphan else seen.KEEPS, found, whole, f"{name} goes on with")
        self._coverage.check(
            seen.KEEPS,
            answer.hit >= talk.kept,
            lambda: f"{name} holds {talk.kept} tokens, its turn hits {answer.hit}",
        )
        self._coverage.event(seen.TURNED, talk.kept)
        self._coverage.event(seen.OUTLIVED, talk.orphan)
        self._coverage.event(seen.CACHED, talk.history and not talk.held)
        talk.turn, talk.text, talk.stale = request, whole, False
        if self._computed(request, whole, name):
            return self.abort_of(name)
        return f"{name} hits {answer.hit} of {len(whole)}"

    def answer(self, which: int, text: str) -> object:
        """Compute more tokens of a turn."""
        busy = [name for name, talk in self.talks.items() if talk.turn]
        if not busy:
            return IGNORED
        name = busy[which % len(busy)]
        talk = self.talks[name]
        units = -(-len(talk.text) // self._block)
        whole = talk.text + text
        extend = partial(self.sessions.extend, talk.turn, _tokens(text), compute=self._chunk)
        answer = self._ask(whole, name, talk.turn, extend, units=units)
        if isinstance(answer, Refusal):
            return answer.reason
        talk.text = whole
        if self._computed(talk.turn, whole, name):
            return self.abort_of(name)
        return f"{name} has {len(whole)}"

    def end(self, which: int, after: float) -> object:
        """End a turn, some seconds later."""
        self._now += after
        busy = [name for name, talk in self.talks.items() if talk.turn]
        if not busy:
            return IGNORED
        name = busy[which % len(busy)]
        talk = self.talks[name]
        cached = self._cached(talk.text)
        self.sessions.end(name)
        talk.history, talk.turn, talk.used = talk.text, "", self._now
        whole = len(talk.history) // self._block * self._block
        exact = self._plain and not talk.stale  # a window lets older tokens go
        self._holds(name, whole if exact else cached)
        return f"{name} keeps {talk.kept}"

    def abort(self, which: int) -> object:
        """Abort a turn."""
        busy = [name for name, talk in self.talks.items() if talk.turn]
        if not busy:
            return IGNORED
        return self.abort_of(busy[which % len(busy)])

    def abort_of(self, name: str) -> str:
        """Abort the turn of a session."""
        talk = self.talks[name]
        self.sessions.abort(name)
        self._coverage.event(seen.ABORTED)
        talk.turn = talk.text = ""
        session = self.sessions.open_ones[name]
        found = (_text(session.history), session.turn, session.kept)
        self._equal(seen.ABORTS, found, (talk.history, None, talk.kept), f"{name} has")
        return name

    # --- other requests ---

    def serve(self, text: str, *, stays: bool) -> object:
        """Admit a request of no session and compute it."""
        name = self._name("r")
        request = AdmitRequest(name, _tokens(text), compute=self._chunk)
        answer = self._ask(text, "", name, partial(self.sessions.admit, request))
        if isinstance(answer, Refusal):
            return answer.reason
        if not self._computed(name, text, "") and stays:
            self.requests[name] = text
        else:
            self.manager.release(name)
        return f"{name} hits {answer.hit} of {len(text)}"

    def finish(self, which: int) -> object:
        """Release a request of no session."""
        if not self.requests:
            return IGNORED
        name = [*self.requests][which % len(self.requests)]
        del self.requests[name]
        self.manager.release(name)
        return name

    def evict(self, blocks: int) -> object:
        """Evict cached blocks."""
        gone = [*map(int, self.manager.evict(blocks))]
        self._coverage.event(seen.PRESSED, gone and self._holding())
        return gone

    def reset(self) -> object:
        """Begin a new epoch: sessions stay open and hold nothing."""
        self.manager.reset()
        self._coverage.event(seen.RESET, self.talks)
        for talk in self.talks.values():
            talk.table, talk.kept, talk.stale = [], 0, bool(talk.turn)
        return "reset"

    # --- room ---

    def _ask(
        self,
        text: str,
        own: str,
        request: str,
        ask: Callable[[], Answer],
        *,
        units: int | None = None,
    ) -> Answer:
        """Ask for room; `units`: those that the request has, None for a new one."""
        self._step = self.manager.begin_step()
        order = self._order(own)
        hit = self._hit_blocks(text) if units is None else []
        had = len(hit) if units is None else units
        due = self._due(-(-len(text) // self._block) - had, {*hit}, order)
        cached = self.manager.usage().cached
        answer = ask()
        gave = [name for name in order if not self.sessions.open_ones[name].pin]
        if self._plain:
            facts = f"{len(text)} tokens, {hit} hit, idle {order}: admitted, who gave"
            found = (not isinstance(answer, Refusal), gave)
            self._equal(seen.ROOM, found, (due is not None, due or []), facts)
        else:
            alone = not {*self.manager.live} - {request}
            stuck = isinstance(answer, Refusal) and answer.reason != "never_fits"
            self._coverage.check(
                seen.ROOM, not (alone and stuck), lambda: f"{request}, alone, gets {answer}"
            )
        self._see(answer, order, gave)
        self._coverage.event(seen.PRESSED, self.manager.usage().cached < cached and order)
        for name in gave:
            self.talks[name].table, self.talks[name].kept = [], 0
        if isinstance(answer, Refusal):
            self._end_step()
        return answer

    def _see(self, answer: Answer, order: list[str], gave: list[str]) -> None:
        self._coverage.event(seen.GAVE, gave)
        self._coverage.event(seen.SPARED, gave and len(gave) < len(order))
        self._coverage.event(seen.IN_VAIN, isinstance(answer, Refusal) and order)

    def _order(self, own: str) -> list[str]:
        """Sessions that could give blocks up, in their order."""
        idle = [n for n in self._holding() if not self.talks[n].turn and n != own]
        mine = [own] if own and self.talks[own].table else []
        return sorted(idle, key=lambda name: self.talks[name].used) + mine

    def _hit_blocks(self, text: str) -> list[int]:
        hit = self.manager.lookup(_tokens(text)) // self._block
        self.manager.pin("probe", _tokens(text))
        pinned = hit and [*map(int, self.manager.tables("probe")[0])]
        self.manager.unpin("probe")
        return pinned[:hit] if pinned else []

    def _due(self, needed: int, hit: set[int], order: list[str]) -> list[str] | None:
        """The sessions that have to give their blocks up; None: the request fits in no case."""
        for count in range(len(order) + 1):
            gone = order[:count]
            used = self._used(gone) | hit
            if needed <= self._room - len(used):
                return gone
        return None

    # --- checks ---

    def _cached(self, text: str) -> int:
        """Tokens of whole blocks that are cached."""
        return self.manager.lookup(_tokens(text + "?")) // self._block * self._block

    def _holding(self) -> list[str]:
        return [name for name, talk in self.talks.items() if talk.table]

    def _computed(self, request: str, text: str, own: str) -> Refusal | None:
        """End the step and compute the tokens that are left; returns why it cannot go on."""
        self._end_step(request, text)
        more = partial(self.sessions.extend, request, compute=self._chunk)
        while self.manager.live[request].computed < len(text):
            answer = self._ask(text, own, request, more, units=0)
            if isinstance(answer, Refusal):
                return answer
            self._end_step(request, text)
        return None

    def _end_step(self, request: str = "", text: str = "") -> None:
        """End the step, and note the content of the whole blocks of the request in it."""
        self.manager.end_step(self._step)
        if request:
            whole = self.manager.live[request].computed // self._block
            table = map(int, self.manager.tables(request)[0][:whole])
            self._content |= {b: text[: (i + 1) * self._block] for i, b in enumerate(table)}

    def _holds(self, name: str, kept: int) -> None:
        """Note the blocks that a session has declared to keep."""
        talk, session = self.talks[name], self.sessions.open_ones[name]
        due = kept if talk.held else 0
        self._equal(seen.KEEPS, session.kept, due, f"of {len(talk.history)} tokens {name} keeps")
        talk.kept = due
        talk.table = self._table(session.pin) if session.pin else []

    def _table(self, name: str) -> list[list[int]]:
        return [[*map(int, ids)] for ids in self.manager.tables(name)]

    def _kept(self) -> None:
        for name in self._holding():
            talk, session = self.talks[name], self.sessions.open_ones[name]
            found = self._table(session.pin) if session.pin else []
            self._equal(seen.KEEPS, found, talk.table, f"{name} holds")
            texts = [self._content.get(block) for block in found[0]]
            stops = range(self._block, talk.kept + 1, self._block)
            due = [talk.history[:stop] for stop in stops]
            self._equal(seen.KEEPS, texts, due, f"blocks of {name} have")

    def _used(self, without: list[str]) -> set[int]:
        """Blocks that requests and sessions hold, some of them left out."""
        live = [self._table(name) for name in self.manager.live]
        kept = [self.talks[name].table for name in self._holding() if name not in without]
        return {block for table in (*live, *kept) for ids in table for block in ids if block}

    def _counts(self) -> None:
        used = self._used([])
        self._equal(seen.COUNTS, self.manager.usage().held, len(used), "held:")
        tables = [{*self.talks[name].table[0]} for name in self._holding()]
        self._coverage.event(seen.SHARED, sum(map(len, tables)) > len(set().union(*tables)))

    def _equal(self, prop: str, found: object, due: object, what: str) -> None:
        self._coverage.equal(prop, found, due, what)

    def _talk(self, which: int) -> str:
        return [*self.talks][which % len(self.talks)]

    def _name(self, letter: str) -> str:
        self._count += 1
        return f"{letter}{self._count}"


def _tokens(text: str) -> tuple[int, ...]:
    return tuple(map(ord, text))


def _text(tokens: bytes) -> str:
    return "".join(map(chr, memoryview(tokens).cast("i")))
