"""Judges the answers of a recorded engine by the shadow memory: nothing is executed again."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import NamedTuple, cast

from kvproof.harness.contract import operations as ops
from kvproof.harness.contract.target import (
    Completed,
    Refused,
    Released,
    Request,
    Scheduled,
    StateUse,
    Table,
    Target,
    TargetConfig,
)
from kvproof.harness.errors import UsageError
from kvproof.harness.oracle.shadow_memory import SLOT_BYTES
from kvproof.harness.oracle.state import RequestState
from kvproof.harness.oracle.violation import INVARIANT, Violation, fail
from kvproof.harness.recorder.codec import unpack
from kvproof.harness.recorder.explain import ExplainedHit, Story
from kvproof.harness.recorder.recorded_profile import profile
from kvproof.harness.recorder.recording import Header, Line, Place, Recording
from kvproof.harness.recorder.tables import Tables, edited, fresh
from kvproof.harness.recorder.trusted import Trusted
from kvproof.harness.session import Session

_HISTORY = 256
"""Operations after which a session forgets details that only a failure's report needs."""

_RELEASES: dict[str, type[ops.Finish | ops.Cancel | ops.Preempt]] = {
    "finish": ops.Finish,
    "cancel": ops.Cancel,
    "preempt": ops.Preempt,
}


class Broken(NamedTuple):
    """The first property that does not hold, and where."""

    violation: Violation
    place: Place
    milliseconds: int
    """Since the recording began."""
    name: str
    """The request as the engine called it; empty if it is about none."""

    def __str__(self) -> str:
        who = f"; this is request {self.name!r} of the engine" if self.name else ""
        return f"{self.violation} [{self.place}, {self.milliseconds / 1000:.3f} s{who}]"


@dataclass
class Judged:
    """Verdict on a recorded engine."""

    header: Header
    operations: int = 0
    requests: int = 0
    tokens: int = 0
    """Tokens of admitted requests."""
    hit_tokens: int = 0
    slots_compared: int = 0
    trusted: int = 0
    """Blocks whose content was not seen being computed: the beginning of the recording is gone."""
    checks: Counter[str] = field(default_factory=Counter)
    happened: Counter[str] = field(default_factory=Counter)
    """Hits, evicted blocks, preemptions, resets: without them a pass proves little."""
    broken: Broken | None = None
    stopped: str = ""
    """Why the recorder gave up; empty: it did not."""
    explained: list[ExplainedHit] = field(default_factory=list)
    """Each admission, if requested."""


class _Recorded:
    def __init__(self, header: Header) -> None:
        self.profile = profile(header)
        self._grouped = bool(header.groups)
        self.answer: Scheduled | Refused | Released = Released()
        """Answer of the next verb."""

    def _say(self, *_: object, **__: object) -> Scheduled | Refused | Released:
        return self.answer

    admit = extend = finish = cancel = preempt = reset = _say

    def complete(self, step: int, *_: object) -> Completed:
        """The end of a step changes nothing: its effects have their own lines."""
        scheduled = cast("Scheduled", self.answer)
        if self._grouped:  # windows give their blocks back at the next step
            return Completed(step)
        return Completed(step, scheduled.blocks, scheduled.tables)


def long_session(target: Target, config: TargetConfig) -> Session:
    """Return a session without inspections and situations, for histories of any length.

    Raises UsageError if the pool is too large for this machine.
    """
    try:
        return Session(target, config, audited=False, covered=False)
    except MemoryError as error:
        slots = config.num_blocks * config.block_size
        raise UsageError(
            f"judging a pool of {slots:,} tokens needs {slots * SLOT_BYTES:,} bytes of memory",
            "copy the recording to a machine that has them",
        ) from error


def judge(recording: Recording, *, explain: bool = False) -> Judged:
    """Check a recording up to the first violation. Raises UsageError for damaged files.

    `explain`: keep the hit and the losses of each admission.
    """
    check = RunningCheck(recording.header, trusting=recording.dropped > 0, explain=explain)
    for place, line in recording.lines():
        if check.take(place, line):
            break
    return check.result()


class RunningCheck:
    """Judges the lines of one cache in order, up to the first violation.

    `trusting`: there were lines before the first; blocks hold content that was not seen.
    """

    def __init__(self, header: Header, *, trusting: bool, explain: bool = False) -> None:
        """Raises UsageError if the pool is too large for this machine."""
        self._target = _Recorded(header)
        target = cast("Target", self._target)  # it has the verbs that are recorded
        self._session = long_session(target, header.config)
        self._session.state.shadow.keep_one_writer_a_request()
        self._size = header.block_size
        self._step = 0
        self._grouped = bool(header.groups)
        unseen = range(header.num_blocks) if trusting else ()
        self._trusted = Trusted(self._session.state, unseen)
        self._fenced = trusting
        """Whether blocks may be under way back or in a transfer: their holders cannot be seen."""
        self._names: dict[str, str] = {}
        self._passed: set[int] = set()
        """Admissions that are not judged; only the blocks that they hold are followed."""
        self._story = Story(self._session) if explain else None
        self.judged = Judged(header)

    def take(self, place: Place, line: Line, *, judged: bool = True) -> Broken | None:
        """Judge a line; returns the violation, after which no line may follow.

        `judged=False`: the request of an admission is passed over, and all its later lines.
        """
        try:
            self._follow(line, judged=judged)
        except Violation as violation:
            name = self._names.get(f"r{line.n}", "")
            self.judged.broken = Broken(violation, place, line.t, name)
            return self.judged.broken
        self.judged.operations += 1
        if len(self._session.history) >= _HISTORY:
            self._session.forget_history()
        return None

    def passes(self, number: int) -> bool:
        """Whether an admission is passed over."""
        return number in self._passed

    def result(self) -> Judged:
        """Return the verdict so far."""
        judged, session = self.judged, self._session
        judged.checks = session.checks
        judged.slots_compared = session.state.shadow.compared
        judged.trusted = self._trusted.count
        if self._story:
            judged.explained = self._story.explained
        return judged

    def _follow(self, line: Line, *, judged: bool) -> None:
        if not judged and line.op in ("admit", "carry"):
            self._passed.add(line.n)
        if line.n in self._passed:
            self._pass_over(line)
        else:
            self._apply(line)

    def _apply(self, line: Line) -> None:
        if line.op in ("admit", "carry"):
            self._names[f"r{line.n}"] = line.name
        if line.op in _RELEASES:
            self._release(line)
            self._names.pop(f"r{line.n}", None)
        else:
            getattr(self, f"_{line.op}")(line)

    def _live(self, line: Line) -> RequestState:
        return self._session.live[f"r{line.n}"]

    # --- lines ---

    def _admit(self, line: Line) -> None:
        request, tables = line.request, self._tables(line, ())
        if line.loaded:  # other requests find loaded blocks only after the load
            self._fenced = True
            self._cap(line)
        whole = line.hit // self._size * self._size
        self._trusted.give(request, tables, whole, cached=True)
        explained = self._story.before(line, request) if self._story else None
        self.judged.requests += 1
        self.judged.tokens += len(request.tokens)
        self.judged.hit_tokens += line.hit
        self.judged.happened["hit"] += line.hit > 0
        self._evicts(self._after_hit(tables, line.hit))
        self._target.answer = self._scheduled(line.hit, (line.hit, line.stop), tables)
        self._session.apply(ops.Admit(request, line.stop - line.hit))
        if self._story and explained:
            self._story.after(explained)

    def _extend(self, line: Line) -> None:
        live, before = self._live(line), self._live(line).groups
        tables, tokens = self._tables(line, before), unpack(line.tokens)
        if line.at > live.computed:  # the steps until then saw the tables before
            self._go_on(live, tokens, line.at, before)
            tokens = ()
        self._evicts(tuple(b for old, new in zip(before, tables, strict=True)
                           for b in fresh(old, new)))  # fmt: skip
        self._go_on(live, tokens, line.stop, tables)
        if self._story:
            self._story.computed(live)

    def _go_on(self, live: RequestState, tokens: tuple[int, ...], stop: int, seen: Tables) -> None:
        start = live.computed
        if self._grouped:
            self._give_back(live, seen)
        if start == stop and self._session.layout.states:
            self._grow(live, tokens, seen)
            return
        self._target.answer = self._scheduled(0, (start, stop), seen)
        self._session.apply(ops.Extend(live.request.id, tokens, stop - start))

    def _give_back(self, live: RequestState, seen: Tables) -> None:
        """Windows give blocks back as the next step begins: to the oracle, as the last one ends."""
        layout = self._session.layout
        groups = tuple(
            tuple(
                block if other else 0
                for block, other in zip_longest(old, new[: len(old)], fillvalue=1)
            )
            if group in layout.partly_visible
            else old
            for group, (old, new) in enumerate(zip(live.groups, seen, strict=True))
        )
        live.show(groups, groups)

    def _grow(self, live: RequestState, tokens: tuple[int, ...], seen: Tables) -> None:
        """A step of tokens that are not known yet: its state is written once they are."""
        live.request = replace(live.request, tokens=live.request.tokens + tokens)
        live.prints = self._session.state.prints(live.request, live.epoch)
        live.show(seen, seen)

    def _tables(self, line: Line, before: Tables) -> Tables:
        """Return the tables after a line, of all groups. Raises ValueError for a damaged line."""
        if not self._grouped:
            fresh_blocks = unpack(line.blocks or "i")
            return ((*before[0], *fresh_blocks),) if before else (fresh_blocks,)
        old = before or ((),) * len(self._session.layout.groups)
        if not line.groups:
            return old
        changes = zip(old, line.groups, strict=True)
        return tuple(edited(table, unpack(change)) if change else table
                     for table, change in changes)  # fmt: skip

    def _after_hit(self, tables: Tables, hit: int) -> Table:
        """Return the blocks of an admission that it computes into."""
        layout = self._session.layout
        sizes = [group.block_size for group in layout.groups]
        states = layout.states
        return tuple(
            block
            for group, table in enumerate(tables)
            for block in table[hit // sizes[group] :]
            if block or not self._grouped or group in states
        )

    def _evicts(self, fresh_blocks: Table) -> None:
        """These blocks were handed out: they lose their content."""
        cached = self._session.state.model.cached
        self._trusted.seen(fresh_blocks)
        self.judged.happened["evicted block"] += sum(block in cached for block in fresh_blocks)
        if self._session.layout.states:  # a state's block may be handed out before its first write
            self._session.state.allocate(tuple(block for block in fresh_blocks if block))

    def _scheduled(self, hit: int, span: tuple[int, int], tables: Tables) -> Scheduled:
        self._step += 1
        start, stop = span
        states = self._states(tables, start, stop) if stop > start else ()
        return Scheduled(self._step, hit, start, stop, tables, tables, states=states)

    def _states(self, tables: Tables, start: int, stop: int) -> tuple[StateUse, ...]:
        """Return the states of a step: each is in the block of its last token."""
        layout, uses = self._session.layout, []
        for group in layout.states:
            table, size = tables[group], layout.groups[group].block_size
            read = _entry(table, (start - 1) // size) if start else ()
            uses.append(StateUse(group, read, ((stop, _entry(table, (stop - 1) // size)),)))
        return tuple(uses)

    def _table(self, line: Line) -> None:
        """Equal blocks replaced some: the request reads those now."""
        live, blocks = self._live(line), unpack(line.blocks or "i")
        whole = live.computed // self._size * self._size
        self._trusted.give(live.request, (blocks,), whole, cached=True)
        tables = (blocks + live.groups[0][len(blocks) :],)
        live.show(tables, tables)
        self._session.content.read(live, live.computed)

    def _release(self, line: Line) -> None:
        live = self._live(line)
        held = self._held(line, live)
        self._fenced |= line.fenced
        self.judged.happened["preemption"] += line.op == "preempt"
        self._target.answer = Released(held)
        self._session.apply(_RELEASES[line.op](live.request.id))

    def _held(self, line: Line, live: RequestState) -> Tables:
        """Return the blocks that a release gives back; windows gave some back since their line."""
        if not self._grouped:
            return (live.groups[0] if line.blocks is None else unpack(line.blocks),)
        if line.groups:
            tables = self._tables(line, live.groups)
            live.show(tables, tables)
        return live.groups

    def _reset(self, line: Line) -> None:
        if self._fenced and not line.done:
            return
        self.judged.happened["reset"] += line.done
        if line.done:  # nothing that was cached before may be hit
            self._trusted.clear()
        self._target.answer = Released() if line.done else Refused("busy")
        self._session.apply(ops.Reset())

    def _evict(self, line: Line) -> None:
        blocks = unpack(line.blocks or "i")
        self._trusted.seen(blocks)
        for block in blocks:
            self._session.state.model.drop(block)

    def _cap(self, _: Line) -> None:
        state = self._session.state
        policy = replace(state.profile.policy, maximal=False)
        state.profile = replace(state.profile, policy=policy)

    def _stopped(self, line: Line) -> None:
        self.judged.stopped = line.reason

    # --- requests that are passed over ---

    def _pass_over(self, line: Line) -> None:
        """Follow the blocks of a request: others may not get them, and trust their content."""
        name, live = f"r{line.n}", self._session.state.live
        if line.op in _RELEASES:
            self._passed.discard(line.n)
            self._fenced |= line.fenced
            del live[name]
        elif line.op == "table":
            blocks = unpack(line.blocks or "i")
            self._holds(name, (blocks + live[name].groups[0][len(blocks) :],))
        elif line.op == "extend":
            before = live[name].groups
            tables = self._tables(line, before)
            both = zip(before, tables, strict=True)
            self._trusted.written([block for old, new in both for block in fresh(old, new)])
            self._holds(name, tables)
        else:
            state, tables = self._session.state, self._tables(line, ())
            none = Request(name, ())
            live[name] = RequestState(none, state.prints(none), state.epoch, state.layout)
            if line.op == "admit":
                self._trusted.written(self._after_hit(tables, line.hit))
            self._holds(name, tables)

    def _holds(self, name: str, tables: Tables) -> None:
        self._session.state.live[name].show(tables, tables)

    def _carry(self, line: Line) -> None:
        """Continue a request whose admission is in a deleted file."""
        state, request, tables = self._session.state, line.request, self._tables(line, ())
        live = RequestState(request, state.prints(request), state.epoch, state.layout)
        live.show(tables, tables)
        live.computed = live.hit = line.stop
        live.prompt, live.stored = len(request.tokens), line.stop // self._size * self._size
        state.checks["last_token_is_computed"] += 1
        if not 0 <= line.stop <= live.prompt:
            sentence = f"request {request.id} of {live.prompt} tokens is computed up to {line.stop}"
            fail(state, "last_token_is_computed", INVARIANT, sentence)
        if not self._grouped:
            self._session.content.addresses(live, line.stop)
        self._trusted.give(request, tables, line.stop, cached=request.store)
        state.live[request.id] = live


def _entry(table: Table, index: int) -> Table:
    """Return one entry; the null block where the table has none, which no state may use."""
    return (table[index] if index < len(table) else 0,)


def doubts(header: Header, *, stopped: str, requests: int, hits: int) -> list[str]:
    """Return why a recording without a violation proves little; empty: it does not."""
    found = [f"the recorder gave up: {stopped}"] if stopped else []
    if not requests:
        found.append("no request was admitted")
    elif not hits and header.prefix_caching:
        found.append("no request hit anything: what is reused was never read")
    return found
