"""One history: operations applied to a target, every answer judged.

    answer of the target -> shadow memory (content) -> ledger (what is reusable) -> audit (counts)

A session raises Violation at the first property that fails, counts how often each property was
evaluated and which situations occurred, and never reads the engine's hashes or counters except
to compare them with its own.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from kvproof.harness import operations as ops
from kvproof.harness.audit import Audit
from kvproof.harness.errors import TargetDied
from kvproof.harness.judge import Judge
from kvproof.harness.ledger import Entry, Ledger
from kvproof.harness.owners import Owners
from kvproof.harness.shadow import Fingerprints, ShadowMemory, Writer, fingerprints
from kvproof.harness.situations import Situations
from kvproof.harness.target import (
    Batch,
    Completed,
    Evicted,
    Refused,
    Released,
    Request,
    Scheduled,
    Table,
    Target,
    TargetConfig,
)
from kvproof.harness.violation import Violation

NULL_BLOCK = 0


@dataclass
class Live:
    """A request as the harness sees it."""

    request: Request
    prints: Fingerprints
    epoch: int
    blocks: Table = ()
    table: Table = ()
    computed: int = 0
    """Tokens computed or scheduled."""
    stored: int = 0
    """Full blocks that are reusable already."""
    steps: set[int] = field(default_factory=set)
    """Steps in flight."""


@dataclass(frozen=True)
class Step:
    """A step in flight: who computes up to where, over which blocks."""

    live: Live
    stop: int
    blocks: frozenset[int]


class Session:
    """Applies operations to one target and judges them; `audited=False` never calls `inspect`."""

    def __init__(self, target: Target, config: TargetConfig, *, audited: bool = True) -> None:
        self.target = target
        self.config = config
        self.profile = target.profile
        self.shadow = ShadowMemory(
            num_blocks=config.num_blocks,
            block_size=config.block_size,
            page_size=config.kernel_size,
        )
        self.ledger = Ledger(config.block_size)
        self.live: dict[str, Live] = {}
        self.fenced: list[Live] = []
        """Released while a step was in flight: their blocks stay theirs until it is done (B6)."""
        self.pins: dict[str, Table] = {}
        self.steps: OrderedDict[int, Step] = OrderedDict()
        self.history: list[tuple[ops.Operation, object]] = []
        self.checks: Counter[str] = Counter()
        self.epoch = 0
        self.misplaced: set[int] = set()
        """Evicted on request and still at their old place in the free order."""
        self._not_stored: set[int] = set()
        """Fingerprints at the ends of blocks computed by requests that may not store (A2)."""
        self.situations = Situations(self)
        self.judge = Judge(self)
        self.owners = Owners(self)
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
        """Count an evaluation of `prop`; raise Violation if it does not hold."""
        self.checks[prop] += 1
        if not ok:
            raise Violation(
                prop, oracle, sentence(), detail=detail, assertion=assertion, suspects=suspects
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
        if isinstance(answer, Scheduled) and not self.profile.in_flight_steps:
            self.situations.after(ops.Complete(), self._complete(ops.Complete()))
        if self.audit:
            self.ledger.settle(self.holders(), len(self.history))
            self.audit.run(answer)
        self.situations.after(operation, answer)
        return answer

    def forget_history(self) -> None:
        """Drop what is only needed to tell a failure: whole workloads would not fit in memory."""
        self.history.clear()
        self.situations.forget()

    def holders(self) -> Counter[int]:
        """Return block -> holders: requests, fenced ones included, and pins (B2)."""
        counts: Counter[int] = Counter()
        for live in (*self.live.values(), *self.fenced):
            counts.update(live.blocks)
        for table in self.pins.values():
            counts.update(table)
        return counts

    def prints(self, request: Request, epoch: int | None = None) -> Fingerprints:
        """Return what each position of a request would hold if it were computed now."""
        return fingerprints(
            request.tokens,
            namespace=request.namespace,
            spans=request.spans,
            epoch=self.epoch if epoch is None else epoch,
        )

    def expected_hit(self, request: Request) -> int:
        """Return the longest hit that the rules allow, by brute force (T1, A2)."""
        if not (request.read and self.config.prefix_caching and request.tokens):
            return 0
        return self.ledger.longest(self.prints(request), len(request.tokens) - 1)

    # --- verbs ---

    def _admit(self, operation: ops.Admit) -> Scheduled | Refused:
        request = operation.request
        expected = self.expected_hit(request)
        answer = self.target.admit(request, operation.compute)
        self.history.append((operation, answer))
        if isinstance(answer, Refused):
            self.judge.refusal(request, answer, len(request.tokens), ())
            return answer
        self.judge.admissible(request)
        self.judge.grouped(request.id, answer)
        live = Live(request, self.prints(request), self.epoch)
        live.blocks, live.table = answer.blocks[0], answer.tables[0]
        self.judge.hit(live, answer, expected)
        self.live[request.id] = live
        live.stored = answer.hit // self.config.block_size
        self._schedule(live, answer, fresh=live.blocks[live.stored :])
        return answer

    def _extend(self, operation: ops.Extend) -> Scheduled | Refused:
        live = self.live[operation.id]
        longer = replace(live.request, tokens=live.request.tokens + operation.tokens)
        answer = self.target.extend(operation.id, operation.tokens, operation.compute)
        self.history.append((operation, answer))
        if isinstance(answer, Refused):
            self.judge.refusal(longer, answer, len(longer.tokens), live.blocks)
            return answer
        self.judge.grouped(operation.id, answer)
        live.request, live.prints = longer, self.prints(longer, live.epoch)
        before, live.blocks, live.table = live.blocks, answer.blocks[0], answer.tables[0]
        self.judge.extension(live, answer, before)
        self._schedule(live, answer, fresh=live.blocks[len(before) :])
        return answer

    def _schedule(self, live: Live, answer: Scheduled, *, fresh: Table) -> None:
        """Take over a scheduled step: hand-outs, copies, the read, then the writes."""
        size = self.config.block_size
        victims = self._hand_out(fresh)
        written = live.blocks[answer.start // size : -(-answer.stop // size)]
        self.judge.tables(live, answer)
        self.owners.handed_out(live, fresh, written)
        self.owners.eviction(victims, live.blocks)
        self.owners.scratch_first(victims, fresh)
        for _, source, destination in answer.copies:
            self.shadow.copy(source, destination)
        self.judge.read(live, 0, answer.start)
        slots = self.judge.slots(live, answer.start, answer.stop)
        writer = Writer(live.request, live.epoch, answer.step)
        self.shadow.write(slots, answer.start, live.prints[answer.start : answer.stop], writer)
        live.computed = answer.stop
        live.steps.add(answer.step)
        self.steps[answer.step] = Step(live, answer.stop, frozenset(live.blocks))
        if self.profile.sharing == "when_scheduled":
            self._store(live, answer.stop)

    def _hand_out(self, fresh: Table) -> dict[int, Entry]:
        """Blocks handed out lose their identity; returns those that had one."""
        victims = {}
        for block in fresh:
            self.misplaced.discard(block)
            entry = self.ledger.drop(block)
            if entry is not None:
                victims[block] = entry
        return victims

    def _store(self, live: Live, stop: int) -> None:
        """Full blocks of a request that may write become reusable (T2)."""
        allowed = live.request.store and self.config.prefix_caching and live.epoch == self.epoch
        full = stop // self.config.block_size
        if allowed:
            for index in range(live.stored, full):
                self.ledger.store(live.blocks[index], live.prints, index)
            live.stored = max(live.stored, full)
        if not live.request.store:
            size = self.config.block_size
            self._not_stored.update(live.prints[size - 1 : full * size : size].tolist())

    def was_not_stored(self, prints: Fingerprints, cached: int) -> bool:
        """Tell whether a request that may not store has computed the block after `cached`."""
        end = cached + self.config.block_size - 1
        return end < len(prints) - 1 and int(prints[end]) in self._not_stored

    def _complete(self, operation: ops.Complete) -> Completed:
        number, step = self.steps.popitem(last=False)
        answer = self.target.complete(number)
        if self.profile.in_flight_steps:
            self.history.append((operation, answer))
        live = step.live
        for waiting in (live, *self.fenced):
            waiting.steps.discard(number)
        self.fenced = [waiting for waiting in self.fenced if waiting.steps]
        if self.live.get(live.request.id) is not live:
            return answer
        if answer.blocks:
            self.judge.grouped(live.request.id, answer)
            self._retire(live, answer.blocks[0])
            live.blocks, live.table = answer.blocks[0], answer.tables[0]
        self.judge.read(live, 0, live.computed, table_of="done")
        if self.profile.sharing == "after_step":
            self._store(live, step.stop)
        return answer

    def _retire(self, live: Live, blocks: Table) -> None:
        """Blocks replaced by equal ones stay the request's while a step may read them (B6)."""
        replaced = tuple(block for block in live.blocks if block not in blocks)
        if replaced and live.steps:
            self.fenced.append(replace(live, blocks=replaced, steps=set(live.steps)))

    def _release(self, operation: ops.Finish | ops.Cancel | ops.Preempt) -> Released:
        verb = {ops.Finish: "finish", ops.Cancel: "cancel", ops.Preempt: "preempt"}
        answer: Released = getattr(self.target, verb[type(operation)])(operation.id)
        self.history.append((operation, answer))
        live = self.live.pop(operation.id, None)
        self.owners.release(operation.id, live, answer)
        if live is not None and live.steps:
            self.fenced.append(live)
        return answer

    def _pin(self, operation: ops.Pin) -> int:
        request = operation.request
        held = self.target.pin(request)
        self.history.append((operation, held))
        prints = self.prints(request)
        expected = self.ledger.longest(prints, len(request.tokens))
        self.owners.pin(request, held, expected)
        if held and request.id not in self.pins:
            self.pins[request.id] = self.ledger.chain(prints, held)
        return held

    def _unpin(self, operation: ops.Unpin) -> Released:
        answer = self.target.unpin(operation.id)
        self.history.append((operation, answer))
        self.owners.unpin(operation.id, self.pins.pop(operation.id, ()), answer)
        return answer

    def _evict(self, operation: ops.Evict) -> Evicted:
        answer = self.target.evict(operation.count)
        self.history.append((operation, answer))
        ids = answer.blocks[0] if answer.blocks else ()
        self.owners.evicted(operation.count, ids)
        victims = {block: entry for block in ids if (entry := self.ledger.drop(block))}
        self.owners.eviction(victims)
        if self.profile.evict_keeps_place:
            self.misplaced.update(ids)
        return answer

    def _reset(self, operation: ops.Reset) -> Released | Refused:
        answer = self.target.reset()
        self.history.append((operation, answer))
        self.judge.reset(answer)
        if not isinstance(answer, Refused):
            self.ledger.clear()
            self.epoch += 1
        return answer

    def _lookup(self, operation: ops.Lookup) -> int:
        found = self.target.lookup(operation.request)
        self.history.append((operation, found))
        self.judge.lookup(operation.request, found)
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
