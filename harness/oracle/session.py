"""One history: operations applied to a target, every answer judged.

    answer of the target -> shadow memory (content) -> ledger (what is reusable) -> audit (counts)

A session raises Violation at the first property that fails, counts how often each property was
evaluated and which situations occurred, and never reads the engine's hashes or counters except
to compare them with its own.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import replace

from kvproof.harness.contract import operations as ops
from kvproof.harness.contract.target import (
    Batch,
    Completed,
    Evicted,
    Profile,
    Refused,
    Released,
    Request,
    Scheduled,
    Table,
    Target,
    TargetConfig,
)
from kvproof.harness.errors import ANSWERS, TargetDied
from kvproof.harness.oracle.cache_model import Ledger
from kvproof.harness.oracle.checks.admission import Admissions
from kvproof.harness.oracle.checks.content import Judge
from kvproof.harness.oracle.checks.hits import HitRules
from kvproof.harness.oracle.checks.host_tier import Host
from kvproof.harness.oracle.checks.inspection import Audit
from kvproof.harness.oracle.checks.ownership import Owners
from kvproof.harness.oracle.checks.partial_blocks import TailRules, Tails
from kvproof.harness.oracle.checks.pins import Pins
from kvproof.harness.oracle.checks.recurrent_states import States
from kvproof.harness.oracle.checks.routed_experts import Experts
from kvproof.harness.oracle.checks.step_extent import Progress
from kvproof.harness.oracle.coverage import Situations
from kvproof.harness.oracle.group_layout import Layout
from kvproof.harness.oracle.longest_hit import Reuse
from kvproof.harness.oracle.request_state import Fenced, Live, Step
from kvproof.harness.oracle.shadow_memory import Fingerprints, ShadowMemory, fingerprints
from kvproof.harness.oracle.step_tracker import Steps
from kvproof.harness.oracle.violation import Violation


def _offered(profile: Profile, config: TargetConfig) -> Profile:
    """Return what a target offers in a configuration: no expert rows beside frozen blocks (T6)."""
    frozen = config.partial_blocks and any(group.kind == "state" for group in config.layout)
    return replace(profile, experts=False) if frozen else profile


class Session:
    """Applies operations to one target and judges them; `audited=False` never calls `inspect`."""

    def __init__(self, target: Target, config: TargetConfig, *, audited: bool = True) -> None:
        self.target = target
        self.config = config
        self.profile = _offered(target.profile, config)
        self.layout = Layout.of(config)
        self.shadow = ShadowMemory(
            num_blocks=config.num_blocks,
            block_size=self.layout.stride,
            host_blocks=config.host_blocks,
        )
        self.ledger = Ledger(self.layout)
        self.tails = Tails(self.ledger, self.layout) if config.partial_blocks else None
        self.reuse = Reuse(self.ledger, self.layout, config, self.profile, self.tails)
        self.live: dict[str, Live] = {}
        self.fenced: list[Fenced] = []
        """Given back while a step was in flight: nobody else's until it is done (B6)."""
        self.pins: dict[str, Table] = {}
        self.pinned_slots: dict[str, Table] = {}
        """Slots of the separate state pool that pins keep."""
        self.steps: OrderedDict[int, Step] = OrderedDict()
        self.history: list[tuple[ops.Operation, object]] = []
        self.given: dict[int, tuple[int, ...]] = {}
        """Step -> expert rows that its completion came with."""
        self.checks: Counter[str] = Counter()
        self.epoch = 0
        self.misplaced: set[int] = set()
        """Evicted on request and still at their old place in the free order."""
        self.situations = Situations(self)
        self.judge = Judge(self)
        self.hits = HitRules(self)
        self.progress = Progress(self)
        self.admissions = Admissions(self)
        self.owners = Owners(self)
        self.copying = TailRules(self)
        self.states = States(self)
        self.experts = Experts(self)
        self.pinning = Pins(self)
        self.host = Host(self)
        self.running = Steps(self)
        self.audit = Audit(self) if audited else None

    def check(
        self,
        prop: str,
        oracle: str,
        ok: bool,  # noqa: FBT001 - the judged condition, always in the same place
        sentence: Callable[[], str],
        *,
        detail: str = "",
        assertion: str = "",
        suspects: tuple[int, ...] = (),
    ) -> None:
        """Count an evaluation of `prop`; raise Violation if it does not hold.

        `assertion` is for scripts that show one group: others judge the whole history again.
        """
        self.checks[prop] += 1
        if not ok:
            said = assertion if self.layout.single else ""
            raise Violation(
                prop, oracle, sentence(), detail=detail, assertion=said, suspects=suspects
            )

    def apply(self, operation: ops.Operation) -> object:
        """Run one operation and judge its answer; returns the answer. Raises Violation."""
        try:
            return self._apply(operation)
        except Violation as violation:
            violation.session = self
            raise
        except TargetDied as died:
            self.history.append((operation, died))
            died.session = self
            raise

    def _apply(self, operation: ops.Operation) -> object:
        self.situations.before(operation)
        answer = self._VERBS[type(operation)](self, operation)
        self.checks[ANSWERS] += 1
        if self._completes_at_once(answer):
            self.situations.after(ops.Complete(), self._complete(ops.Complete()))
        if self.audit:
            self.audit.inspect()
            copied = {block for step in self.steps.values() for block in step.sources}
            self.ledger.settle(self.holders().keys() | copied, len(self.history))
            self.audit.run(answer)
        self.situations.after(operation, answer)
        self.host.after(operation, answer)
        return answer

    def _completes_at_once(self, answer: object) -> bool:
        """Without steps in flight only drafts keep a step open: their fate is an operation."""
        if self.profile.in_flight_steps or not isinstance(answer, Scheduled):
            return False
        return not next(reversed(self.steps.values())).drafts

    def forget_history(self) -> None:
        """Drop what is only needed to tell a failure: whole workloads would not fit in memory."""
        self.history.clear()
        self.given.clear()
        self.situations.forget()

    def holders(self) -> Counter[int]:
        """Return block -> holders: requests, fenced ones included, steps' states and pins (B2)."""
        counts: Counter[int] = Counter()
        for live in self.live.values():
            counts.update(live.blocks)
        for fenced in self.fenced:
            counts.update(fenced.blocks if fenced.sure else ())
        if self.layout.states:
            counts.update({b for step in self.steps.values() for b in step.held} - counts.keys())
        for table in self.pins.values():
            counts.update(table)
        return counts

    def unsettled(self) -> set[int]:
        """Return blocks that may be held or not: a running step copies from them or saw them."""
        sources = {block for step in self.steps.values() for block in step.sources}
        return sources | {block for f in self.fenced if not f.sure for block in f.blocks}

    def prints(self, request: Request, epoch: int | None = None) -> Fingerprints:
        """Return what each position of a request would hold if it were computed now."""
        return fingerprints(
            request.tokens,
            namespace=request.namespace,
            spans=request.spans,
            epoch=self.epoch if epoch is None else epoch,
        )

    def expected_hit(self, request: Request, *, but: str = "", known: bool = False) -> int:
        """Return the longest hit that the rules allow, by brute force (T1, A2).

        For `but` and `known` see `Reuse.longest`.
        """
        if not (request.read and self.config.prefix_caching and request.tokens):
            return 0
        limit = len(request.tokens) - 1
        return self.reuse.longest(self.prints(request), limit, request.spans, but=but, known=known)

    # --- verbs ---

    def _admit(self, operation: ops.Admit) -> Scheduled | Refused:
        request = operation.request
        expected = self.expected_hit(request)
        known = self.expected_hit(request, known=True)
        answer = self.target.admit(request, operation.compute)
        self.history.append((operation, answer))
        if isinstance(answer, Refused):
            self.admissions.refusal(request, answer, ())
            return answer
        self.host.moved(answer.moves, answer.blocks)
        self.admissions.admissible(request)
        self.judge.grouped(request.id, answer)
        live = Live(request, self.prints(request), self.epoch, self.layout)
        live.groups, live.tables = answer.blocks, answer.tables
        live.prompt = len(request.tokens)
        self.judge.hit(live, answer, expected, known)
        self.running.admit(live, answer)
        self.live[request.id] = live
        self.running.schedule(live, answer, operation.compute, known=None)
        return answer

    def _extend(self, operation: ops.Extend) -> Scheduled | Refused:
        live = self.live[operation.id]
        tokens = live.request.tokens + operation.tokens + operation.drafts
        longer = replace(live.request, tokens=tokens)
        # a target without drafts need not know that there are any
        drafts = {"drafts": operation.drafts} if operation.drafts else {}
        answer = self.target.extend(operation.id, operation.tokens, operation.compute, **drafts)
        self.history.append((operation, answer))
        if isinstance(answer, Refused):
            self.admissions.refusal(longer, answer, live.blocks, drafts=len(operation.drafts))
            return answer
        self.host.moved(answer.moves, answer.blocks)
        self.judge.grouped(operation.id, answer)
        live.request, live.prints = longer, self.prints(longer, live.epoch)
        live.drafts = len(operation.drafts)
        known, live.groups, live.tables = live.groups, answer.blocks, answer.tables
        self.judge.extension(live, answer, known)
        self.running.schedule(live, answer, operation.compute, known=known)
        return answer

    def _complete(self, operation: ops.Complete) -> Completed:
        return self.running.complete(operation)

    def _experts(self, operation: ops.Experts) -> tuple[int | None, ...]:
        found = self.target.experts(operation.id)
        self.history.append((operation, found))
        self.experts.returned(self.live[operation.id], found)
        return found

    def _release(self, operation: ops.Finish | ops.Cancel | ops.Preempt) -> Released:
        verb = {ops.Finish: "finish", ops.Cancel: "cancel", ops.Preempt: "preempt"}
        answer: Released = getattr(self.target, verb[type(operation)])(operation.id)
        self.history.append((operation, answer))
        live = self.live.pop(operation.id, None)
        self.owners.release(operation.id, live, answer)
        if live is not None and live.steps:
            self.fenced.append(Fenced(live.request, live.blocks, set(live.steps)))
        elif live is not None and self.tails and self.running.may_store(live):
            self.tails.left(live)
        return answer

    def _pin(self, operation: ops.Pin) -> int:
        held = self.target.pin(operation.request)
        self.history.append((operation, held))
        self.pinning.pin(operation.request, held)
        return held

    def _unpin(self, operation: ops.Unpin) -> Released:
        answer = self.target.unpin(operation.id)
        self.history.append((operation, answer))
        self.pinning.unpin(operation.id, answer)
        return answer

    def _evict(self, operation: ops.Evict) -> Evicted:
        answer = self.target.evict(operation.count)
        self.history.append((operation, answer))
        ids = self.layout.flat(answer.blocks)
        self.owners.evicted(operation.count, ids)
        victims = {block: entry for block in ids if (entry := self.ledger.drop(block))}
        self.owners.eviction(victims)
        if self.profile.evict_keeps_place:
            self.misplaced.update(ids)
        return answer

    def _reset(self, operation: ops.Reset) -> Released | Refused:
        answer = self.target.reset()
        self.history.append((operation, answer))
        self.admissions.reset(answer)
        if not isinstance(answer, Refused):
            self.ledger.clear()
            if self.tails:
                self.tails.clear()
            self.epoch += 1
        return answer

    def _lookup(self, operation: ops.Lookup) -> int:
        found = self.target.lookup(operation.request)
        self.history.append((operation, found))
        self.admissions.lookup(operation.request, found)
        return found

    def _batch(self, operation: ops.ReadBatch) -> Batch:
        answer = self.target.batch(operation.ids)
        self.history.append((operation, answer))
        self.judge.batch([self.live[name] for name in operation.ids], answer)
        return answer

    _VERBS: dict[type, Callable[..., object]] = {  # noqa: RUF012 - filled once, read only
        ops.Admit: _admit,
        ops.Extend: _extend,
        ops.Complete: _complete,
        ops.Experts: _experts,
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
