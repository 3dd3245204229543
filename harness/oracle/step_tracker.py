"""Steps from their schedule to their end: who gets which blocks, what becomes reusable when."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from kvproof.harness.contract import operations as ops
from kvproof.harness.contract.target import Completed, Request, Scheduled, Table
from kvproof.harness.oracle.cache_model import Entry
from kvproof.harness.oracle.longest_hit import inside
from kvproof.harness.oracle.request_state import NULL_BLOCK, Fenced, Live, Step
from kvproof.harness.oracle.shadow_memory import Fingerprints, Writer

if TYPE_CHECKING:
    from kvproof.harness.oracle.session import Session


class Steps:
    """Schedules and completes the steps of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._layout = session.layout
        self._lost: dict[str, set[int]] = {"not stored": set(), "rejected": set()}
        """Why a unit was computed and not stored -> fingerprints at the ends of such units."""
        self.handed: set[int] = set()
        """Blocks handed out since the last inspection."""
        self.victims: dict[int, Entry] = {}
        """What those of them were that were cached."""
        self.rewritten: list[Entry] = []
        """Checkpoints since the last inspection whose rows were taken for other states."""
        self.replaceable: set[int] = set()
        """Contents of checkpoints that were made while decoding (S6)."""
        self.doubles: list[tuple[int, Fingerprints, int, int]] = []
        """(block, prints, index, group): given back since the last inspection, for another block
        had the same content; unless that one had just been evicted."""
        self.superseded: set[int] = set()
        """Contents of the blocks behind which checkpoints were frozen since the last inspection."""

    def admit(self, live: Live, answer: Scheduled) -> None:
        """Take over what is known of a request once it hit."""
        session, hit = self._session, answer.hit
        live.stored = live.hit = hit
        if self._layout.states and live.request.read and live.request.store:
            live.junction = self._junction(live.request, live, hit)
        if session.profile.experts:
            live.routed = session.experts.of_hit(live, hit)

    def _junction(self, request: Request, live: Live, hit: int) -> int:
        """Return where the attention groups matched further than the state; 0: nowhere (S8)."""
        session = self._session
        if not session.config.prefix_caching:
            return 0
        length = session.reuse.matched(live.prints, len(request.tokens) - 1)
        if any(group.draft for group in self._layout.groups):
            length -= self._layout.unit
        while length > hit and inside(request.spans, length):
            length -= self._layout.unit
        return length if length > hit else 0

    def schedule(
        self,
        live: Live,
        answer: Scheduled,
        compute: int | None,
        *,
        known: tuple[Table, ...] | None,
    ) -> None:
        """Take over a scheduled step: hand-outs, copies, the reads, then the writes.

        `known` are the tables before an extension; None for an admission, whose hit is known.
        """
        session, layout = self._session, self._layout
        fresh = self._fresh(live, answer, known)
        if session.tails:
            session.copying.copied(live, answer)
        victims = self.hand_out(fresh)
        if layout.separate:
            self.hand_out_rows(sorted(session.states.written(answer)))
        live.steps[answer.step] = answer.start
        session.judge.tables(live, answer)
        session.progress.extent(live, answer, compute)
        session.owners.handed_out(live, answer, fresh, self._written(live, answer))
        sources = tuple(source for g, source, _ in answer.copies if g in layout.attention)
        session.owners.eviction(victims, (*live.blocks, *sources))
        session.owners.scratch_first(victims, fresh)
        if layout.states:
            session.states.owned(live, answer)
        for group, source, destination in answer.copies:
            if group in layout.attention:
                session.shadow.copy(source, destination)
        if layout.states:
            session.states.restore(live, answer)
        session.judge.read(live, answer.start)
        self._write(live, answer)
        if layout.states:
            session.states.compute(live, answer)
        for group, source, destination in answer.saves:
            if group in layout.attention:
                session.shadow.copy(source, destination)
        session.progress.encode(live, answer)
        session.progress.checkpoints(live, answer, len(fresh))
        session.situations.scheduled(live, answer)
        live.computed = answer.stop
        self._note(live, answer)
        if session.profile.sharing == "when_scheduled":
            self._store(live, answer.stop - live.drafts, live.groups)
            self._publish(live, session.steps[answer.step], answer.stop - live.drafts)

    def _fresh(self, live: Live, answer: Scheduled, known: tuple[Table, ...] | None) -> Table:
        """Return the blocks of the shared pool that a request did not have before."""
        layout, fresh = self._layout, []
        for group in layout.attention:
            size = layout.groups[group].block_size
            whole = answer.hit // layout.unit * layout.unit
            before = whole // size if known is None else len(known[group])
            fresh += [block for block in live.groups[group][before:] if block or layout.single]
        fresh += [block for block, _ in self._frozen(answer)]
        if layout.states and not layout.separate:
            had = {block for g in layout.states for block in known[g]} if known else set()
            held = {b for step in self._session.steps.values() if step.live is live
                    for b in step.held}  # fmt: skip
            fresh += sorted(self._session.states.written(answer) - had - held)
        return tuple(fresh)

    def _written(self, live: Live, answer: Scheduled) -> Table:
        """Return the blocks of the shared pool that a step writes."""
        layout = self._layout
        written: list[int] = []
        for group in layout.attention:
            size = layout.groups[group].block_size
            written += live.groups[group][answer.start // size : -(-answer.stop // size)]
        written += [block for block, _ in self._frozen(answer)]
        if layout.states and not layout.separate:
            written += sorted(self._session.states.written(answer))
        return tuple(written)

    def _frozen(self, answer: Scheduled) -> tuple[tuple[int, int], ...]:
        """Return (block, group) of the copies that a step makes when it has computed."""
        attention = self._layout.attention
        return tuple((block, group) for group, _, block in answer.saves if group in attention)

    def hand_out(self, fresh: Table) -> dict[int, Entry]:
        """Blocks handed out lose their identity; returns those that had one."""
        session, victims = self._session, {}
        for block in fresh:
            session.misplaced.discard(block)
            entry = session.ledger.drop(block)
            if entry is not None:
                victims[block] = entry
        self.handed.update(fresh)
        self.victims.update(victims)
        return victims

    def hand_out_rows(self, keys: Iterable[int]) -> None:
        """A checkpoint ends when another state is put into its row."""
        self.rewritten += [each for key in keys if (each := self._session.ledger.drop_row(key))]

    def _write(self, live: Live, answer: Scheduled) -> None:
        layout, start, stop = self._layout, answer.start, answer.stop
        for group in layout.attention:
            slots = self._session.judge.slots(live, group, start, stop)
            writer = Writer(live.request, live.epoch, answer.step, group)
            content = live.prints[start:stop]
            if group:
                content = content ^ layout.salts[group]
            self._session.shadow.write(slots, start, content, writer)

    def _note(self, live: Live, answer: Scheduled) -> None:
        """Keep what the step touches, for as long as it is in flight."""
        session, layout = self._session, self._layout
        copied = frozenset(source for g, source, _ in answer.copies if g in layout.attention)
        if session.tails:
            copied = session.tails.around(copied)
        if layout.single:
            session.steps[answer.step] = Step(
                live,
                answer.start,
                answer.stop,
                frozenset(live.blocks) | copied,
                answer,
                sources=copied,
                drafts=live.drafts,
            )
            return
        touched = {
            block
            for g in layout.attention
            for block in live.groups[g][layout.first_block(g, answer.start) :]
        } - {NULL_BLOCK}
        states = session.states.used(answer)
        sources = {source for g, source, _ in answer.copies if g in layout.states}
        pooled = frozenset() if layout.separate else frozenset(states)
        session.steps[answer.step] = Step(
            live,
            answer.start,
            answer.stop,
            frozenset(touched) | pooled | copied,
            answer,
            frozenset() if layout.separate else frozenset(session.states.written(answer)),
            copied if layout.separate else copied | sources,
            frozenset(states) if layout.separate else frozenset(),
            live.drafts,
            session.states.saved(live, answer),
            self._frozen(answer),
        )

    # --- the end of a step ---

    def complete(self, operation: ops.Complete) -> Completed:
        """Run the oldest step to its end."""
        session = self._session
        number, step = session.steps.popitem(last=False)
        live, drafts = step.live, step.drafts
        accepted = drafts if operation.accepted is None else min(operation.accepted, drafts)
        rows = session.experts.rows(step) if operation.routed and session.profile.experts else ()
        answer = self._end(number, operation.accepted, rows)
        if rows:
            session.given[number] = rows
        if session.profile.in_flight_steps or drafts:
            session.history.append((operation, answer))
        live.steps.pop(number, None)
        for fenced in session.fenced:
            fenced.steps.discard(number)
        session.fenced = [fenced for fenced in session.fenced if fenced.steps]
        if live.steps and session.live.get(live.request.id) is not live:
            states = tuple(step.held | step.sources)  # whoever released it may wait for them all
            session.fenced.append(Fenced(live.request, states, set(live.steps), sure=False))
        session.experts.computed(step, rows)
        left = session.live.get(live.request.id) is not live
        if left and session.profile.in_flight_steps:
            self._write_late(live, step)
        if drafts:
            self._keep(live, drafts - accepted)
        if not left:
            self._finish(step, answer)
        return answer

    def _write_late(self, live: Live, step: Step) -> None:
        """A step whose request has left wrote until now, whosever its blocks are by now (B6)."""
        live.drafts = step.drafts  # a later step may have had others
        self._write(live, step.answer)
        if self._layout.states:
            self._session.states.compute(live, step.answer)

    def _end(self, number: int, accepted: int | None, rows: tuple[int, ...]) -> Completed:
        """Say no more than is known: a target without drafts or experts need not know of them."""
        target = self._session.target
        if rows:
            return target.complete(number, accepted, rows)
        return target.complete(number) if accepted is None else target.complete(number, accepted)

    def _keep(self, live: Live, rejected: int) -> None:
        """Forget the drafts that were not accepted (X5)."""
        session, unit = self._session, self._layout.unit
        live.drafts = 0
        session.situations.rejected(live, rejected)
        if not rejected:
            return
        count = len(live.request.tokens) - rejected
        ends = live.prints[unit - 1 :: unit][count // unit :]
        self._lost["rejected"].update(ends.tolist())
        live.request = replace(live.request, tokens=live.request.tokens[:count])
        live.prints, live.computed = live.prints[:count], count
        live.routed = live.routed[:count]

    def _finish(self, step: Step, answer: Completed) -> None:
        session, live = self._session, step.live
        before = live.groups
        if answer.blocks:
            session.judge.grouped(live.request.id, answer)
            self._retire(live, answer.blocks)
            live.groups, live.tables = answer.blocks, answer.tables
            session.judge.returned(live)
        session.judge.read(live, live.earliest, live.computed, table_of="done")
        stop = min(step.stop, live.computed)
        if session.profile.sharing == "after_step":
            self._store(live, self._reusable(step, stop), before)
            self._publish(live, step, stop)

    def _retire(self, live: Live, groups: tuple[Table, ...]) -> None:
        """Blocks replaced by equal ones stay the request's while a step may read them (B6).

        Those that are given back because nothing is visible in them any more do not.
        """
        if not live.steps:
            return
        changed = [
            (old, new)
            for g in self._layout.attention
            for old, new in zip(live.groups[g], groups[g])  # noqa: B905 - rejected drafts shorten it
            if old not in (new, NULL_BLOCK)
        ]
        for sure in (True, False):
            blocks = tuple(old for old, new in changed if bool(new or self._layout.single) == sure)
            if blocks:
                steps = set(live.steps)
                self._session.fenced.append(Fenced(live.request, blocks, steps, sure))

    # --- what becomes reusable ---

    def may_store(self, live: Live) -> bool:
        """Tell whether what a request computes becomes reusable."""
        session = self._session
        return live.request.store and session.config.prefix_caching and live.epoch == session.epoch

    def _reusable(self, step: Step, stop: int) -> int:
        """Return up to where a step makes units reusable (S1)."""
        if not self._layout.states or self._session.profile.stores == "computed":
            return stop
        return max((tokens for tokens, _, _ in step.saves if tokens <= stop), default=0)

    def _store(self, live: Live, stop: int, before: tuple[Table, ...]) -> None:
        """Full units of a request that may write become reusable (T2).

        `before` are its tables as they were while the step ran: what nothing sees any more is
        returned when the step is done, and cached all the same.
        """
        layout, end = self._layout, stop // self._layout.unit * self._layout.unit
        if self.may_store(live):
            for index in range(live.stored // layout.unit, end // layout.unit):
                self._store_unit(live, index, before)
        if not live.request.store:
            ends = live.prints[layout.unit - 1 : end : layout.unit]
            self._lost["not stored"].update(ends.tolist())
        live.stored = max(live.stored, end)

    def _store_unit(self, live: Live, index: int, before: tuple[Table, ...]) -> None:
        session, layout = self._session, self._layout
        if session.profile.experts:
            mine = live.routed[index * layout.unit : (index + 1) * layout.unit]
            session.ledger.route(live.prints, index, complete=bool(mine.all()))
        for group in layout.attention:
            ratio = layout.unit // layout.groups[group].block_size
            for block in range(index * ratio, (index + 1) * ratio):
                self._store_block(live, block, group, before)

    def _store_block(self, live: Live, index: int, group: int, before: tuple[Table, ...]) -> None:
        ledger = self._session.ledger
        block = live.groups[group][index]
        if block == NULL_BLOCK and not self._layout.single:
            block = before[group][index]
            if ledger.in_pool(live.prints, index, group):
                if self._session.audit:
                    self.doubles.append((block, live.prints, index, group))
                return
        if block != NULL_BLOCK:
            ledger.store(block, live.prints, index, group)

    def _publish(self, live: Live, step: Step, stop: int) -> None:
        """A saved checkpoint is reusable once its step is done, if all of it was accepted (S2)."""
        session = self._session
        if not self.may_store(live):
            return
        frozen = self._freeze(live, step) if session.tails and step.frozen else 0
        for tokens, group, ids in step.saves:
            if tokens > stop:
                continue
            keys = session.states.keys(group, ids)
            session.ledger.store_state(keys, live.prints, tokens, group, frozen)
            if tokens > live.prompt:
                self.replaceable.update(session.ledger.state(live.prints, tokens, group))

    def _freeze(self, live: Live, step: Step) -> int:
        """A checkpoint inside a unit takes the place of the one before that unit (T6)."""
        session, layout = self._session, self._layout
        assert session.tails is not None
        if start := step.stop // layout.unit * layout.unit:
            first = layout.full[0]
            before = start // layout.groups[first].block_size - 1
            self.superseded.add(session.ledger.key(live.prints, before, first))
        return session.tails.freeze(live.prints, step.stop, dict(step.frozen))

    def was_lost(self, why: str, request: Request, cached: int) -> bool:
        """Tell whether the unit after `cached` was computed before and not stored for this reason.

        `not stored`: by a request that may not (A2); `rejected`: with a draft token in it (X5).
        """
        unit = self._layout.unit
        prints, end = self._session.prints(request), cached // unit * unit + unit - 1
        return end < len(prints) - 1 and int(prints[end]) in self._lost[why]
