"""Batches of SGLang's model runner as launches of the shadow device.

The scheduler runs ahead of the device: a forward returns stand-ins of tokens, ids beyond the
vocabulary, which travel through the engine's own relay into the next batch. A launch that is
executed puts its tokens in their place. A launch reads `req_to_token` when it is executed, or when
the engine orders later writes after it, whichever comes first. So it does with the map that leads
to the slots of windows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from kvproof.harness.adapters.sglang_engine.drafts import Trees
from kvproof.harness.adapters.sglang_engine.pools import FULL, Pools
from kvproof.harness.adapters.sglang_engine.requests import name_of
from kvproof.harness.adapters.sglang_engine.running import RUNNING
from kvproof.harness.adapters.sglang_engine.states import STATE, use
from kvproof.harness.contract.whole_engine import OWN, Reads, Row, Slots, StateUse, StateWrite
from kvproof.harness.model.chain import FIRST_TOKEN, VOCABULARY
from kvproof.harness.whole_engine.device import Launch, ShadowDevice
from kvproof.harness.whole_engine.findings import IllegalAccess

STAND_INS = 2048
"""Ids beyond the vocabulary; far more than tokens can be under way."""
ByGroup = Callable[[Slots], list[Slots]]
"""From slots of the full pool to those of each group."""


class Launches:
    """The forwards of one engine."""

    def __init__(self, device: ShadowDevice, scheduler: Any, pools: Pools, page: int) -> None:
        self.device, self._pools, self._page = device, pools, page
        self._memories = [each.memory for each in device.memory.pools]
        """Memory of each group."""
        self._table = scheduler.req_to_token_pool.req_to_token
        self._batch: Any = None
        self._stand_ins: dict[int, tuple[Launch, int]] = {}
        """Stand-in -> the launch and the row whose token it is."""
        self._next = 0
        self._waiting: list[_Tables] = []
        """Tables of launches that are not held yet."""
        self._results: list[Any] = []
        """Results with stand-ins."""
        self._seen: dict[str, int] = {}
        """Request -> how often it had been retracted at its last row."""

    def run(self, run_batch: Any, batch: Any) -> Any:
        """Run a batch by the engine's own function; wait for a result without an event."""
        self._batch = batch
        states = self._pools.states
        result = states.forward(lambda: run_batch(batch)) if states else run_batch(batch)
        self._results.append(result)
        if result.copy_done is None:
            self.complete(self.device.submitted)
        return result

    def complete(self, number: int) -> None:
        """Execute all launches up to a number, and put tokens in the place of stand-ins."""
        self.device.complete(number)
        left = []
        for result in self._results:
            tokens = [self._token(each) for each in result.next_token_ids.tolist()]
            result.next_token_ids[:] = torch.tensor(tokens)
            if max(tokens, default=0) >= VOCABULARY:
                left.append(result)
        self._results = left

    def _token(self, token: int) -> int:
        """Return the token of a stand-in, or itself while its launch has not run."""
        launch, row = self._stand_ins.get(token, (None, 0))
        if launch is None or launch.answers is None:
            return token
        return launch.answers[row][-1] if launch.answers[row] else FIRST_TOKEN

    def hold_tables(self) -> None:
        """Read the tables of all launches now: later writes are ordered after them."""
        for each in self._waiting:
            each.hold()
        self._waiting.clear()

    def launch(self, input_ids: Any, positions: Any, forward: Any) -> list[int]:
        """Launch a batch; return a token, or a stand-in for it, of each row or node of a tree."""
        if forward.forward_mode.is_target_verify():
            return self._verify(Trees(input_ids, positions, forward), forward)
        states = self._pools.states
        tables = _Tables(self._table, self._by_group, forward, states.slot if states else None)
        marks = states.checkpoints(forward) if states else []
        lengths = _lengths(forward)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        tokens, where = input_ids.tolist(), positions.tolist()
        slots = forward.out_cache_loc.numpy().astype(np.int64)
        rows, own = [], []
        for index, name in enumerate(forward.rids):
            part = slice(int(offsets[index]), int(offsets[index + 1]))
            table = tables.row(index)
            _check_positions(name, where[part], len(table[0]))
            writes = self._by_group(slots[part])
            row = self._row(index, where[part][0], tokens[part], writes, table)
            if states:
                row = self._with_states(row, tables.slot(index), marks[index], index)
            rows.append(row)
            own.append(tokens[part])

        def actual() -> list[Row]:
            return [
                self._as_executed(row, own[index], tables, index) for index, row in enumerate(rows)
            ]

        self._waiting.append(tables)
        launch = self.device.launch(rows, self._before(), actual=actual)
        if not self._batch.spec_algorithm.is_none():  # drafts follow the token: the host waits
            answers = self.device.answers(launch)
            return [each[-1] if each else FIRST_TOKEN for each in answers]
        return [self._stand_in(launch, index) for index in range(len(rows))]

    def _verify(self, trees: Trees, forward: Any) -> list[int]:
        """Launch the paths of trees, and wait for the token after each node."""
        tables = _Tables(self._table, self._by_group, forward, None)

        def window(index: int, count: int) -> Slots:
            row, start = int(forward.req_pool_indices[index]), int(forward.seq_lens[index])
            slots: Slots = self._table[row, start : start + count].numpy().astype(np.int64)
            return slots

        committed = [tables.row(index)[0] for index in range(forward.batch_size)]
        findings = self.device.findings
        rows = trees.rows(committed, window, self._by_group, findings, self._page)
        answers = self.device.answers(self.device.launch(rows, self._before()))
        return trees.answers(answers, findings)

    def _before(self) -> list[Callable[[], None]]:
        """Return the changes of states ahead of a forward, and its waits for copies."""
        if self._pools.states is not None:
            return self._pools.states.before()
        if RUNNING.tier is None:
            return []
        layers = sum(len(each.layers) for each in self.device.memory.pools)
        return [partial(self.device.wait, each) for each in RUNNING.tier.awaited(layers)]

    def _by_group(self, slots: Slots) -> list[Slots]:
        """Return the slots of each group that belong to slots of the full pool, as they are now."""
        self._check_slots(FULL, slots)
        found = [self._pools.slots_of(name, slots) for name in self._memories]
        for name, own in zip(self._memories, found):  # noqa: B905 - equal by make
            self._check_slots(name, own)
        return found

    def _check_slots(self, memory: str, slots: Slots) -> None:
        last = self._pools.last(memory)
        if len(slots) and not 0 <= slots.min() <= slots.max() < last:
            raise IllegalAccess(f"a batch has slots {slots.tolist()}, the pool has {last}")

    def _stand_in(self, launch: Launch, row: int) -> int:
        self._next = (self._next + 1) % STAND_INS
        found = VOCABULARY + self._next
        self._stand_ins[found] = (launch, row)
        return found

    def _row(
        self,
        index: int,
        start: int,
        tokens: Sequence[int],
        writes: Sequence[Slots],
        tables: Sequence[Slots],
    ) -> Row:
        native, batch = self._batch.reqs[index], self._batch
        end = start + len(tokens)
        fresh = batch.forward_mode.is_extend() and self._begins(native, batch)
        self._seen[native.rid] = native.retraction_count
        wholes = [self._whole_pages(each) for each in tables]
        owned = [(each[:: self._page] // self._page).tolist() for each in wholes]
        return Row(
            request=name_of(native.rid),
            start=start,
            tokens=tuple(OWN if each >= VOCABULARY else each for each in tokens),
            drafts=0,
            samples=end >= len(native.origin_input_ids) + len(native.output_ids),
            fresh=fresh,
            device_start=False,
            groups=tuple(map(Reads, wholes, writes, owned)),
        )

    def _begins(self, native: Any, batch: Any) -> bool:
        decoding = batch.decoding_reqs or ()
        return native not in decoding and self._seen.get(native.rid) != native.retraction_count

    def _with_states(self, row: Row, slot: int, marks: Sequence[StateWrite], index: int) -> Row:
        """Put the states of a row into its groups."""
        assert self._pools.states is not None, "the model has states"
        held = self._pools.states.held(self._batch.reqs[index])
        own = use(slot, row.start + len(row.tokens), marks)
        groups = [
            replace(reads, owned=held, use=own) if name == STATE else reads
            for name, reads in zip(self._memories, row.groups)  # noqa: B905 - equal by make
        ]
        return replace(row, groups=tuple(groups))

    def _as_executed(self, row: Row, tokens: Sequence[int], tables: _Tables, index: int) -> Row:
        groups = tuple(
            replace(reads, table=self._whole_pages(table), use=_at(reads.use, tables.slot(index)))
            for reads, table in zip(row.groups, tables.row(index))  # noqa: B905 - equal by make
        )
        return replace(row, tokens=tuple(map(self._token, tokens)), groups=groups)

    def _whole_pages(self, slots: Slots) -> Slots:
        """Fill the last page of a row up, as kernels address it by its first slot."""
        page = self._page
        last = len(slots) // page * page
        if last == len(slots):
            return slots
        first = slots[last] // page * page
        rest = np.arange(first, first + page)
        rest[: len(slots) - last] = slots[last:]
        return np.concatenate([slots[:last], rest])


class _Tables:
    """Rows of `req_to_token` of one launch, read when they are asked for, until they are held."""

    def __init__(
        self, table: Any, by_group: ByGroup, forward: Any, slot_of: Callable[[int], int] | None
    ) -> None:
        self._table, self._by_group, self._slot_of = table, by_group, slot_of
        self._rows, self._lengths = forward.req_pool_indices, forward.seq_lens
        self._held: list[list[Slots]] | None = None
        self._held_slots: list[int] = []

    def hold(self) -> None:
        """Read all rows."""
        self._held_slots = [self.slot(index) for index in range(len(self._rows))]
        self._held = [self._read(index) for index in range(len(self._rows))]

    def slot(self, index: int) -> int:
        """Return the slot of a row's running state; 0: the model has no states."""
        if self._held is not None:
            return self._held_slots[index]
        return 0 if self._slot_of is None else self._slot_of(int(self._rows[index]))

    def row(self, index: int) -> list[Slots]:
        """Return the slots of a row by position, in each group."""
        return self._read(index) if self._held is None else self._held[index]

    def _read(self, index: int) -> list[Slots]:
        slots = self._table[int(self._rows[index]), : int(self._lengths[index])]
        return self._by_group(slots.numpy().astype(np.int64))


def _at(states: StateUse | None, slot: int) -> StateUse | None:
    """Return the states of a row whose running slot is another one now."""
    if states is None:
        return None
    running, *checkpoints = states.writes
    return use(slot, running.length, checkpoints)


def _check_positions(name: str, positions: Sequence[int], length: int) -> None:
    if not positions or [*positions] != [*range(length - len(positions), length)]:
        raise IllegalAccess(
            f"{name_of(name)} computes positions {positions[:4]} and on, its length is {length}"
        )


def _lengths(forward: Any) -> list[int]:
    """Return how many tokens each row computes."""
    if forward.forward_mode.is_decode():
        return [1] * forward.batch_size
    found: list[int] = forward.extend_seq_lens.tolist()
    return found
