"""The driver of one history: it applies operations to a target and checks every answer.

answer of the target -> shadow memory (content) -> cache model (reuse) -> inspection (counts)

A session raises Violation at the first property that fails, counts the evaluations of each property
and the situations, and uses the engine's hashes and counters only for comparison.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kvproof.harness.contract import operations as ops
from kvproof.harness.contract.profile import ExpertProfile, Profile
from kvproof.harness.contract.target import (
    Batch,
    Completed,
    Evicted,
    Inspection,
    Refused,
    Released,
    Scheduled,
    Table,
    Target,
    TargetConfig,
)
from kvproof.harness.errors import ANSWERS, TargetDied
from kvproof.harness.oracle.checks.answers import AnswerChecks
from kvproof.harness.oracle.checks.border import Border
from kvproof.harness.oracle.checks.content import ContentChecks, malformed
from kvproof.harness.oracle.checks.eviction_order import EvictionOrderChecks
from kvproof.harness.oracle.checks.host_tier import HostTierChecks
from kvproof.harness.oracle.checks.inspection import InspectionChecks
from kvproof.harness.oracle.checks.losses import LossChecks
from kvproof.harness.oracle.checks.partial_blocks import PartialBlockChecks
from kvproof.harness.oracle.checks.recurrent_states import StateChecks
from kvproof.harness.oracle.checks.retained import RetainedChecks
from kvproof.harness.oracle.checks.routed_experts import ExpertChecks
from kvproof.harness.oracle.checks.tables import TableChecks
from kvproof.harness.oracle.contents import Entry
from kvproof.harness.oracle.coverage import Coverage
from kvproof.harness.oracle.indexing import Indexing
from kvproof.harness.oracle.state import Changes, Fenced, OracleState, RequestState, Step
from kvproof.harness.oracle.violation import Violation


def _offered(profile: Profile, config: TargetConfig) -> Profile:
    """Return the profile in one configuration: no expert rows next to frozen blocks (T6)."""
    frozen = config.partial_blocks and any(
        not group.visibility.by_position for group in config.layout
    )
    return replace(profile, routed=ExpertProfile()) if frozen else profile


class Session:
    """Applies operations to one target and checks its answers.

    `audited=False`: `inspect` is never called. `covered=False`: situations are not counted, for
    histories of any length.
    """

    def __init__(
        self, target: Target, config: TargetConfig, *, audited: bool = True, covered: bool = True
    ) -> None:
        self.target = target
        self.state = state = OracleState(_offered(target.profile, config), config, audited=audited)
        self.config, self.layout = config, state.layout
        self.live, self.steps, self.history = state.live, state.steps, state.history
        self.checks, self.situations = state.checks, state.situations
        self.coverage = Coverage(state) if covered else None
        self._border = Border(state)
        self.content = ContentChecks(state)
        self._tables = TableChecks(state)
        self._answers = AnswerChecks(state)
        self._partial = PartialBlockChecks(state)
        self._states = StateChecks(state)
        self._experts = ExpertChecks(state)
        self._host = HostTierChecks(state)
        self._inspection = InspectionChecks(state)
        self._losses = LossChecks(state)
        self._order = EvictionOrderChecks(state)
        self._retained = RetainedChecks(state)
        self._indexing = Indexing(state)
        self.ends: dict[int, list[tuple[Scheduled, Completed]]] = {}
        """Place in the history -> the steps that ended right after it, or by it."""
        self._announce = getattr(target, "announce", lambda _: None)
        self._audit = ("inspect",) if audited else ()
        if audited:
            state.inspected = self._look()

    @property
    def profile(self) -> Profile:
        """The target's profile in this configuration."""
        return self.state.profile

    def apply(self, operation: ops.Operation) -> object:
        """Run and check one operation; returns the answer. Raises Violation and TargetDied."""
        try:
            return self._apply(operation)
        except Violation as violation:
            violation.state = self.state
            raise
        except TargetDied as died:
            if self.history and self.history[-1][0] is operation:  # it died after its answer
                self.history.pop()
            self.history.append((operation, died))
            died.session = self
            raise

    def _apply(self, operation: ops.Operation) -> object:
        self.state.recency.now += 1
        self._announce(self._following(operation))
        answer = self._VERBS[type(operation)](self, operation)
        self._order.used(operation)
        self.checks[ANSWERS] += 1
        if self._completes_at_once(answer):
            if self.state.profile.experts:
                self._announce(self._audit)
            done = self._complete(ops.Complete())
            if self.coverage:
                self.coverage.after(ops.Complete(), done)
        if self.state.audited:
            self._inspect()
        if self.coverage:
            self.coverage.after(operation, answer)
        if self.config.host_blocks:
            self._host.after(operation, answer)
        return answer

    def _following(self, operation: ops.Operation) -> tuple[str, ...]:
        """Name the calls that come after an operation, where they do not depend on its answer."""
        profile = self.state.profile
        drafts = isinstance(operation, ops.Extend) and operation.drafts
        schedules = isinstance(operation, (ops.Admit, ops.Extend))
        if not schedules or drafts or profile.in_flight_steps:
            return self._audit
        return () if profile.experts else ("complete", *self._audit)

    def _completes_at_once(self, answer: object) -> bool:
        """Without steps in flight only drafts keep a step open: their fate is an operation."""
        if self.state.profile.in_flight_steps or not isinstance(answer, Scheduled):
            return False
        return not next(reversed(self.steps.values())).drafts

    def _inspect(self) -> None:
        state, before = self.state, self.state.inspected
        assert before is not None
        state.inspected = found = self._look()
        if self.config.host_blocks:
            self._host.inspected(found)
        held = state.holders()
        if found.dropped is not None or not self.layout.single:
            lost = self._losses.run(before, found, held)
            if lost.blocks:
                self._order.evicted(lost.blocks, held, with_states=bool(lost.rows))
            if lost.alone:
                self._order.checkpoints(lost.alone)
        state.changes = Changes()
        state.settle(held)
        self._inspection.run(before, found, held)
        self._retained.run(found)

    def _look(self) -> Inspection:
        found = self.target.inspect()
        self._border.inspected(found)
        return found

    def forget_history(self) -> None:
        """Drop the operations and requests so far: whole workloads would not fit in memory."""
        self.history.clear()
        self.ends.clear()
        if self.coverage:
            self.coverage.forget()

    # --- requests ---

    def _admit(self, operation: ops.Admit) -> Scheduled | Refused:
        state, request = self.state, operation.request
        forecast = state.forecast(request)
        if self.coverage:
            self.coverage.before(operation, forecast)
        answer = self.target.admit(request, operation.compute)
        self._border.scheduled("admit", answer)
        self.history.append((operation, answer))
        if isinstance(answer, Refused):
            hit = forecast.listed if state.profile.maximal else 0
            self._answers.refused(request, answer, (), problem=malformed(request), hit=hit)
            return answer
        matched = forecast  # the hit before the room for the step was made
        if answer.moves:
            self._host.moved(answer.moves, answer.blocks)
            forecast = forecast._replace(resident=None)  # the host tier has changed
        self.content.admitted(request)
        self._tables.grouped(request.id, answer)
        live = RequestState(request, forecast.prints, state.epoch, self.layout)
        live.show(answer.blocks, answer.tables)
        live.prompt = len(request.tokens)
        live.stored = live.hit = answer.hit
        live.matched = state.matched(request, forecast)
        self.content.hit(live, answer, forecast)
        whole = answer.hit // self.layout.unit * self.layout.unit if state.partial else answer.hit
        self.content.read(live, answer.hit, whole)  # the rest is copied
        self.content.length(live, answer.hit, forecast)
        if answer.hit and self.layout.partly_visible:
            self._indexing.touch(live)
        if self.layout.states:
            live.junction = self._indexing.junction(live, answer.hit, matched)
        if state.profile.experts and answer.hit:
            live.routed = state.model.rows_of_hit(live.prints, answer.hit)
        self.live[request.id] = live
        self._schedule(state.step(live, answer, None), operation.compute)
        return answer

    def _extend(self, operation: ops.Extend) -> Scheduled | Refused:
        if self.coverage:
            self.coverage.before(operation, None)
        state, live = self.state, self.live[operation.id]
        tokens = live.request.tokens + operation.tokens + operation.drafts
        longer = replace(live.request, tokens=tokens)
        # a target without drafts may have no such argument
        drafts = {"drafts": operation.drafts} if operation.drafts else {}
        answer = self.target.extend(operation.id, operation.tokens, operation.compute, **drafts)
        self._border.scheduled("extend", answer)
        self.history.append((operation, answer))
        if isinstance(answer, Refused):
            count, problem = len(operation.drafts), malformed(longer)
            self._answers.refused(longer, answer, live.blocks, drafts=count, problem=problem)
            return answer
        if answer.moves:
            self._host.moved(answer.moves, answer.blocks)
        self._tables.grouped(operation.id, answer)
        if longer.tokens != live.request.tokens:
            live.request, live.prints = longer, state.prints(longer, live.epoch)
        live.drafts, known = len(operation.drafts), live.groups
        live.show(answer.blocks, answer.tables)
        self._tables.extended(live, answer, known)
        self._schedule(state.step(live, answer, known), operation.compute)
        return answer

    def _release(self, operation: ops.Finish | ops.Cancel | ops.Preempt) -> Released:
        if self.coverage:
            self.coverage.before(operation, None)
        verb = {ops.Finish: "finish", ops.Cancel: "cancel", ops.Preempt: "preempt"}
        answer: Released = getattr(self.target, verb[type(operation)])(operation.id)
        self.history.append((operation, answer))
        state, live = self.state, self.live.pop(operation.id, None)
        state.left = live
        self._answers.released(operation.id, live, answer)
        if live is not None and not live.steps and live.epoch == state.epoch and state.audited:
            state.recency.released()
        if live is not None and live.steps:
            state.fenced.append(Fenced(live.request, live.blocks, set(live.steps)))
        elif live is not None and state.partial and state.may_store(live):
            state.partial.left(live)
        return answer

    # --- a step ---

    def _schedule(self, step: Step, compute: int | None) -> None:
        live, answer = step.live, step.answer
        self._copy(step, compute)
        self.content.read(live, answer.start)
        self.content.compute(live, answer)
        self._save(step)
        self._keep(step)

    def _copy(self, step: Step, compute: int | None) -> None:
        state, live, answer, layout = self.state, step.live, step.answer, self.layout
        if state.partial:
            self._partial.copied(live, answer)
        victims = state.allocate(step.fresh)
        if layout.separate:
            state.overwrite_rows(sorted(state.recurrent.written(answer)))
        live.steps[answer.step] = answer.start
        self._tables.scheduled(live, answer, compute)
        self._tables.allocated(step)
        self._evicted_for(step, victims)
        if layout.states:
            self._states.owned(live, answer)
        for group, source, destination in answer.copies:
            if group in layout.attention:
                state.shadow.copy(source, destination)
        if layout.states:
            self._states.restore(live, answer)

    def _evicted_for(self, step: Step, victims: dict[int, Entry]) -> None:
        attention = self.layout.attention
        sources = tuple(source for group, source, _ in step.answer.copies if group in attention)
        self._tables.eviction_order(victims, (*step.live.blocks, *sources))
        self._tables.uncached_first(victims, step.fresh)

    def _save(self, step: Step) -> None:
        state, live, answer = self.state, step.live, step.answer
        if self.layout.states:
            self._states.compute(live, answer)
            self._states.save(live, answer)
        for group, source, destination in answer.saves:
            if group in self.layout.attention:
                state.shadow.copy(source, destination)

    def _keep(self, step: Step) -> None:
        """The step is in flight; its blocks are reusable already if the target shares at once."""
        state, live, answer = self.state, step.live, step.answer
        if state.profile.encode:
            self._tables.encoded(live, answer)
        if self.layout.states:
            self._states.checkpoints(step)
            if self.coverage:
                self.coverage.scheduled(step)
        live.computed, live.scheduled = answer.stop, answer.blocks[0]
        self.steps[answer.step] = step
        if state.profile.sharing == "when_scheduled":
            self._indexing.store(live, answer.stop - live.drafts, live.groups)
            self._indexing.publish(live, step, answer.stop - live.drafts)

    def _complete(self, operation: ops.Complete) -> Completed:
        profile = self.state.profile
        number, step = self.steps.popitem(last=False)
        live, drafts = step.live, step.drafts
        accepted = drafts if operation.accepted is None else min(operation.accepted, drafts)
        rows = self._experts.rows(step) if operation.routed and profile.experts else ()
        answer = self._end(number, operation.accepted, rows)
        self._border.completed(number, answer)
        if profile.in_flight_steps or drafts:
            self.history.append((operation, answer))
        self.ends.setdefault(len(self.history) - 1, []).append((step.answer, answer))
        live.steps.pop(number, None)
        self._indexing.unfence(number)
        left = self.live.get(live.request.id) is not live
        if left and live.steps:
            self._indexing.fence_states(step)
        if profile.experts:
            self._experts.computed(step, rows)
        if left and profile.in_flight_steps:
            self._write_late(step)
        if drafts:
            if self.coverage:
                self.coverage.rejected(live, drafts - accepted)
            self._indexing.reject(live, drafts - accepted)
        if not left:
            self._finish(step, answer)
        return answer

    def _end(self, number: int, accepted: int | None, rows: tuple[int, ...]) -> Completed:
        """Complete a step; a target without drafts or experts may have no such arguments."""
        if rows:
            return self.target.complete(number, accepted, rows)
        if accepted is None:
            return self.target.complete(number)
        return self.target.complete(number, accepted)

    def _write_late(self, step: Step) -> None:
        """Write the step of a departed request now, even to reallocated blocks (B6)."""
        step.live.drafts = step.drafts  # a later step may have had others
        self.content.compute(step.live, step.answer)
        if self.layout.states:
            self._states.compute(step.live, step.answer)
            self._states.save(step.live, step.answer)

    def _finish(self, step: Step, answer: Completed) -> None:
        """The tables of a request after its step, and the blocks that are reusable now."""
        live, before = step.live, step.live.groups
        if answer.blocks:
            self._tables.grouped(live.request.id, answer)
            self._indexing.retire(live, answer.blocks)
            live.show(answer.blocks, answer.tables)
            if self.layout.partly_visible:
                self._tables.returned(live)
            self._tables.covers(live, live.computed)
        self.content.read(live, live.earliest, live.computed)
        stop = min(step.stop, live.computed)
        if self.state.profile.sharing == "after_step":
            self._indexing.store(live, self._indexing.reusable(step, stop), before)
            self._indexing.publish(live, step, stop)

    # --- other verbs ---

    def _read_experts(self, operation: ops.Experts) -> tuple[int | None, ...]:
        found = self.target.experts(operation.id)
        self.history.append((operation, found))
        self._experts.returned(self.live[operation.id], found)
        return found

    def _pin(self, operation: ops.Pin) -> int:
        state, request = self.state, operation.request
        held = self.target.pin(request)
        self.history.append((operation, held))
        self._answers.pinned(request, held)
        if held and request.id not in state.pins:
            prints = state.prints(request)
            state.pins[request.id] = state.model.needed(prints, held)
            if self.layout.separate:
                found = (state.model.state_blocks(prints, held, g) for g in self.layout.states)
                state.pinned_slots[request.id] = tuple(slot for slots in found for slot in slots)
        return held

    def _unpin(self, operation: ops.Unpin) -> Released:
        answer = self.target.unpin(operation.id)
        self.history.append((operation, answer))
        table: Table = self.state.pins.pop(operation.id, ())
        self.state.pinned_slots.pop(operation.id, None)
        self._answers.unpinned(operation.id, table, answer)
        return answer

    def _evict(self, operation: ops.Evict) -> Evicted:
        state, answer = self.state, self.target.evict(operation.count)
        self.history.append((operation, answer))
        ids = self.layout.flat(answer.blocks)
        self._answers.evicted(operation.count, ids)
        victims = state.model.drop_all(ids)
        self._tables.eviction_order(victims)
        self._order.answered(victims)
        state.changes.victims.update(victims)
        if state.profile.evict_keeps_place:
            state.evicted_in_place.update(ids)
        return answer

    def _reset(self, operation: ops.Reset) -> Released | Refused:
        if self.coverage:
            self.coverage.before(operation, None)
        state, answer = self.state, self.target.reset()
        self.history.append((operation, answer))
        self._answers.reset(answer)
        if not isinstance(answer, Refused):
            state.model.clear()
            if state.partial:
                state.partial.clear()
            state.epoch += 1
        return answer

    def _lookup(self, operation: ops.Lookup) -> int:
        forecast = self.state.forecast(operation.request)
        found = self.target.lookup(operation.request)
        self.history.append((operation, found))
        self._answers.lookup(operation.request, found, forecast)
        return found

    def _batch(self, operation: ops.ReadBatch) -> Batch:
        answer = self.target.batch(operation.ids)
        self.history.append((operation, answer))
        self._answers.batch([self.live[name] for name in operation.ids], answer)
        return answer

    _VERBS: dict[type, Callable[..., object]] = {  # noqa: RUF012 - filled once, read only
        ops.Admit: _admit,
        ops.Extend: _extend,
        ops.Complete: _complete,
        ops.Experts: _read_experts,
        ops.Finish: _release,
        ops.Cancel: _release,
        ops.Preempt: _release,
        ops.Pin: _pin,
        ops.Unpin: _unpin,
        ops.Evict: _evict,
        ops.Reset: _reset,
        ops.Lookup: _lookup,
        ops.ReadBatch: _batch,
    }
