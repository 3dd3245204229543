"""The device under an engine: takes launches in stream order, executes them when it must, or later.

A launch is submitted with tables and tokens as the engine's worker has them then. Executed, it
writes the content of every row, then reads everything that its rows attend to, and answers with
tokens that follow from that content. The content is compared with the request's own chain.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeVar

from kvproof.harness.contract.whole_engine import EngineRequest, Row
from kvproof.harness.model.chain import FIRST_TOKEN, VOCABULARY, Chain
from kvproof.harness.model.draft_trees import DraftTree, draw
from kvproof.harness.whole_engine.attention import Attention
from kvproof.harness.whole_engine.checks import check_belief, check_submission
from kvproof.harness.whole_engine.device_requests import DeviceRequest, Work
from kvproof.harness.whole_engine.encoder_outputs import EncoderOutputs
from kvproof.harness.whole_engine.failed_loads import Losses, spoiled
from kvproof.harness.whole_engine.findings import Findings
from kvproof.harness.whole_engine.memory import DeviceMemory
from kvproof.harness.whole_engine.transfers import Transfer, Transfers

AWAY = "nothing_runs_on_memory_that_is_away"

T = TypeVar("T")


def _pass_over(_: Sequence[Row]) -> None:
    """Watch nothing."""


Actual = Callable[[], Sequence[Row]]
After = Callable[[Sequence[tuple[int, ...]]], list[tuple[int, ...]]]


@dataclass
class Launch:
    """One batch on its way through the device."""

    number: int
    rows: Sequence[Row]
    requests: Sequence[DeviceRequest]
    before: Sequence[Callable[[], None]]
    epoch: int
    tick: int
    """Tick at which it was submitted."""
    lost: Mapping[str, int] = field(default_factory=dict)
    """Request that computes from a load that failed -> first position that is lost."""
    ran: int = -1
    """Tick at which it was executed; -1: it is queued."""
    answers: list[tuple[int, ...]] | None = None
    """Tokens by row once it was executed."""
    actual: Actual | None = None
    """Returns the rows as the device has made them, when it executes them; None: as submitted."""
    after: After | None = None
    """Gets the answers once they are there; returns those for the host."""


@dataclass
class ShadowDevice:
    """Memory, a compute stream and transfers, for one engine."""

    memory: DeviceMemory
    findings: Findings
    seed: int = 0
    most_drafts: int = 0
    lag: int = 0
    """Number of launches that may stay queued while their answers are not asked for."""
    epoch: int = 0
    """Number of changes of weights: each makes all later content different."""
    encodes: bool = False
    """The engine encodes media in steps: `encoder` follows them."""
    asleep: bool = False
    """Nothing may run: the engine sleeps, or is paused."""
    tick: int = 0
    submitted: int = 0
    worked: int = 0
    """Launches with a row."""
    executed: int = 0
    failed: Exception | None = None
    """Exception that ended a launch; an engine that kept it in a future asks for answers again."""
    queue: deque[Launch] = field(default_factory=deque)
    recent: list[Launch] = field(default_factory=list)
    """Submitted since it was last cleared."""
    requests: dict[str, DeviceRequest] = field(default_factory=dict)
    watch: Callable[[Sequence[Row]], None] = _pass_over
    """Gets the rows of each launch as the host submits them, before they are checked."""
    transfers: Transfers = field(init=False)
    losses: Losses = field(init=False)
    encoder: EncoderOutputs = field(init=False)

    def __post_init__(self) -> None:
        """Start with nothing under way."""
        self.transfers = Transfers(self.seed)
        self.encoder = EncoderOutputs(self.findings, self.requests)
        self.losses = Losses(self.memory.pools[0].block_size)
        self._parts: dict[tuple[str, int], tuple[str, int]] = {}
        """(Memory, block) -> the transfer in parts that wrote it last, and the launches until then.
        """
        self._attention = Attention(self.memory, self.findings, self.requests)
        self._unjudged = Attention(self.memory, Findings(), self.requests)

    def register(self, request: EngineRequest, chain: Chain) -> None:
        """Announce a request's content, before the engine gets the request."""
        self.requests[request.id] = DeviceRequest(request, chain)

    def launch(
        self,
        rows: Sequence[Row],
        before: Sequence[Callable[[], None]] = (),
        *,
        actual: Actual | None = None,
        after: After | None = None,
    ) -> Launch:
        """Queue a batch; `before` runs on the device ahead of it. It runs late by `lag`."""
        self.submitted += 1
        if rows:  # an empty launch is no progress
            self.worked += 1
            self.transfers.stored.clear()
        self.findings.check(
            AWAY,
            not (self.asleep and rows),
            lambda: f"launch {self.submitted} computes {rows[0].request} while the engine sleeps",
        )
        self.watch(rows)
        rows, lost = self.losses.look(rows)
        self.findings.context["behind_a_failed_load"] = dict(self.losses.returned)
        self.findings.context["lost_in_a_step"] = self.losses.in_a_step
        self.findings.saw("a request computes before its load is known to have failed", lost)
        requests = [self.requests[row.request] for row in rows]
        for name in lost:
            self.requests[name].load_failed = True
        number, now = self.submitted, (self.epoch, self.tick)
        launch = Launch(number, tuple(rows), requests, tuple(before), *now, lost)
        launch.actual, launch.after = actual, after
        if actual is None:
            self._check(launch)
        self.queue.append(launch)
        self.recent.append(launch)
        self.findings.saw("a launch waits while the host goes on", self.lag and len(self.queue) > 1)
        while len(self.queue) > self.lag:
            self._execute(self.queue.popleft())
        return launch

    def _check(self, launch: Launch) -> None:
        pairs = zip(launch.rows, launch.requests)  # noqa: B905 - Python 3.10 runs it, equal by make
        for row, request in pairs:
            check_submission(row, request, self.memory.pools, self.findings, launch=launch.number)
            if self.encodes:
                self.encoder.check(row)

    def _take_actual(self, launch: Launch) -> None:
        """Replace the rows that the host believed in by those that the device has made."""
        if launch.actual is None:
            return
        believed, launch.rows = launch.rows, launch.actual()
        for row, own, request in zip(believed, launch.rows, launch.requests):  # noqa: B905 - as above
            check_belief(row, own, request, self.findings)
        self._check(launch)

    def answers(self, launch: Launch) -> list[tuple[int, ...]]:
        """Return the tokens of a launch, executing all up to it."""
        self.complete(launch.number)
        if launch.answers is None and self.failed is not None:
            raise self.failed
        assert launch.answers is not None
        return launch.answers

    def complete(self, number: int) -> None:
        """Execute every launch up to a number."""
        while self.queue and self.queue[0].number <= number:
            self._execute(self.queue.popleft())

    def transfer(
        self,
        run: Callable[[], None],
        *,
        stream: str,
        ordered: bool = True,
        reads: Sequence[int] = (),
        writes: Sequence[int] = (),
        memory: str = "",
        part_of: str = "",
        late: int = 0,
        beginnings: Mapping[int, int] = MappingProxyType({}),
    ) -> Transfer:
        """Put a copy under way; `ordered`: its stream waits for all launches until now.

        It reads and writes blocks of one memory. It ends `late` ticks after those that are
        submitted with it. Of the blocks in `beginnings` so many slots count.
        """
        return self.transfers.add(
            run,
            tick=self.tick,
            submitted=self.submitted,
            after=self.submitted if ordered else 0,
            stream=stream,
            reads=reads,
            writes=writes,
            memory=memory,
            part_of=part_of,
            late=late,
            beginnings=beginnings,
        )

    def due_transfers(self) -> list[Transfer]:
        """End the transfers that are due, and return them."""
        ready = self.transfers.due(self.tick)
        for transfer in ready:
            self.wait(transfer)
        return ready

    def reported(self, ended: Collection[T], before: Collection[T]) -> Collection[T]:
        """Return which of the copies that are reported as ended now are reported again later."""
        self.findings.repeats(happened=before)
        return ended if self.transfers.twice else ()

    def end_transfers(self) -> None:
        """End every transfer."""
        for transfer in list(self.transfers.pending):
            self.wait(transfer)

    def wait(self, transfer: Transfer) -> None:
        """End a transfer now: launches that it waits for come first."""
        if transfer.done:
            return
        for earlier in self.transfers.before(transfer):
            self.wait(earlier)
        self.complete(transfer.after)
        self._check_undisturbed(transfer)
        self.findings.saw("a transfer ends later than it was submitted", self.tick > transfer.due)
        self.transfers.end(transfer, tick=self.tick)
        self.memory.marks[transfer.memory].whole(list(transfer.writes), self.submitted)
        if transfer.part_of:
            ended = (transfer.part_of, self.submitted)
            blocks = [(transfer.memory, each) for each in transfer.writes]
            self._parts.update(dict.fromkeys(blocks, ended))

    def _check_undisturbed(self, transfer: Transfer) -> None:
        touched = [*transfer.reads, *transfer.writes]
        name, marks = transfer.memory, self.memory.marks[transfer.memory]
        written = {block: int(marks.written[block]) for block in touched}
        for block, count in transfer.beginnings.items():
            written[block] = int(marks.slots[block, :count].max(initial=0))
        late = [
            block
            for block, launch in written.items()
            if launch > transfer.submitted
            and self._parts.get((name, block)) != (transfer.part_of, launch)
        ]
        self.findings.check(
            "blocks_in_flight_are_not_reused",
            not late,
            lambda: (
                f"blocks {late} were written by a launch while transfer {transfer.number}, "
                f"submitted before it, still {'read' if transfer.reads else 'wrote'} them"
            ),
        )

    def sleep(self) -> None:
        """Execute all queued launches, and lose the memory."""
        self.complete(self.submitted)
        self.memory.spoil()

    def drafts(self, request: str) -> list[int]:
        """Return the drafts that follow the tokens sampled on the device for a request."""
        return list(self.requests[request].drafts)

    def _execute(self, launch: Launch) -> None:
        try:
            self._run(launch)
        except Exception as error:
            self.failed = error
            raise

    def _run(self, launch: Launch) -> None:
        self.executed, launch.ran = launch.number, self.tick
        for run in launch.before:
            run()
        self._take_actual(launch)
        pairs = zip(launch.rows, launch.requests)  # noqa: B905 - as above
        work = [self._resolve(launch, row, request) for row, request in pairs]
        for attention in (self._unjudged, self._attention):
            share = [each for each in work if self._attention_of(launch, each.row) is attention]
            attention.write(share, launch.epoch, launch.number)
        answers = [
            self._attention_of(launch, each.row).answer(
                each, epoch=launch.epoch, launch=launch.number
            )
            for each in work
        ]
        for each, tokens in _accepted(work, answers):
            each.request.advance(each, tokens)
            self._propose(each.request, sampled=bool(tokens))
        launch.answers = answers if launch.after is None else launch.after(answers)

    def _attention_of(self, launch: Launch, row: Row) -> Attention:
        spared = row.request in launch.lost or self.requests[row.request].struck
        return self._unjudged if spared else self._attention

    def _resolve(self, launch: Launch, row: Row, request: DeviceRequest) -> Work:
        work = self._attention_of(launch, row).resolve(row, request)
        return spoiled(work, launch.lost[row.request]) if row.request in launch.lost else work

    def _propose(self, request: DeviceRequest, *, sampled: bool) -> None:
        """Draft tokens: right ones up to a number that the request was drawn with, then wrong."""
        request.drafts = []
        if not sampled or not self.most_drafts:
            return
        ahead, right = _ahead(request, self.most_drafts)
        request.drafts = ahead[:right] + [_other(token) for token in ahead[right:]]

    def draft_tree(self, name: str, nodes: int, *, chain: bool) -> DraftTree:
        """Draft a tree of so many nodes after a request's last known token."""
        request = self.requests[name]
        seed = hash((self.seed, request.known, request.proposals))
        ahead, right = _ahead(request, nodes)
        request.tree = draw(ahead, right, nodes=nodes, chain=chain, seed=seed)
        return request.tree


def _ahead(request: DeviceRequest, count: int) -> tuple[list[int], int]:
    """Return the tokens that follow, and how many of them the next proposal has."""
    accepts = request.request.accepts
    right = accepts[request.proposals % len(accepts)] if accepts else count
    request.proposals += 1
    request.chain.ensure(request.known + count)
    return request.chain.tokens[request.known : request.known + count], right


def _accepted(
    work: Sequence[Work], answers: Sequence[tuple[int, ...]]
) -> list[tuple[Work, tuple[int, ...]]]:
    """Return each request's row with its answers: of a tree that path of which most is right."""
    found: dict[str, tuple[Work, tuple[int, ...]]] = {}
    for each, tokens in zip(work, answers):  # noqa: B905 - equal by make
        best = found.get(each.row.request)
        if best is None or len(tokens) > len(best[1]):
            found[each.row.request] = (each, tokens)
    return [*found.values()]


def _other(token: int) -> int:
    return FIRST_TOKEN + (token - FIRST_TOKEN + 1) % (VOCABULARY - FIRST_TOKEN)
