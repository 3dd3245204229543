"""Effects of a launch on memory: writes of all rows first, then reads, then answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvproof.harness.contract.whole_engine import OWN, Row, Slots
from kvproof.harness.model.chain import FIRST_TOKEN, fold, token_of
from kvproof.harness.model.fingerprints import MASK, Fingerprints, mix
from kvproof.harness.model.visibility import Visibility
from kvproof.harness.whole_engine.causes import (
    DRAFTS,
    EPOCHS,
    MEDIA,
    NAMESPACES,
    READS,
    RECEIVED,
    REUSED,
    STATES,
    Cause,
    cause,
)
from kvproof.harness.whole_engine.checks import AGREE
from kvproof.harness.whole_engine.device_requests import DeviceRequest, Work
from kvproof.harness.whole_engine.findings import Findings
from kvproof.harness.whole_engine.memory import DeviceMemory, Layer, Pool

TOKENS = "a_launch_computes_the_requests_own_tokens"
ZEROED = "new_blocks_are_zeroed"
ONCE = "a_launch_writes_no_slot_twice_with_unlike_content"
NULL = "the_null_block_is_never_written"
JUDGED = (READS, RECEIVED, NAMESPACES, MEDIA, EPOCHS, DRAFTS, REUSED)
"""Properties that one comparison of slots judges: the content found shows which one is broken."""


class Attention:
    """Executes rows on the memory of one engine."""

    def __init__(
        self, memory: DeviceMemory, findings: Findings, requests: Mapping[str, DeviceRequest]
    ) -> None:
        self._memory = memory
        self._findings = findings
        self.requests = requests

    def resolve(self, row: Row, request: DeviceRequest) -> Work:
        """Return a row with the positions and tokens that the device computes."""
        start = self._start(row, request)
        if row.fresh:
            request.begun.clear()
            request.since = start
        known = start + len(row.tokens) - row.drafts
        tokens = [self._token(row, request, start, at) for at in range(len(row.tokens))]
        drafts = tuple(tokens[len(tokens) - row.drafts :]) if row.drafts else ()
        request.chain.ensure(known)
        expected = request.chain.tokens[start:known]
        verified = tokens[: len(tokens) - row.drafts]
        drafted = request.tree if row.of_tree else request.drafts[: row.drafts]
        self._findings.check(
            TOKENS,
            OWN in row.tokens or _drafted(row, request, drafts),
            lambda: f"{row.request} verifies drafts {list(drafts)}, the device drafted {drafted}",
        )
        self._findings.check(
            TOKENS,
            verified == expected,
            lambda: (
                f"{row.request} computes tokens {verified[-6:]} at positions ..{known - 1}, "
                f"its own are {expected[-6:]}"
            ),
            facts={"load_failed": request.load_failed},
        )
        end = start + len(row.tokens)
        return Work(row, request, start, end, known, drafts, request.chain.branch(known, drafts))

    def _start(self, row: Row, request: DeviceRequest) -> int:
        """Return where a row begins: the device knows which drafts it accepted."""
        if row.fresh:
            return row.start
        ahead = row.start - request.computed
        most = request.unreported if row.device_start else 0
        self._findings.check(
            AGREE,
            0 <= ahead <= most,
            lambda: (
                f"the scheduler lets {row.request} go on at token {row.start}, the device has "
                f"computed {request.computed} and {most} drafts are not reported"
            ),
        )
        return request.computed if row.device_start else row.start

    @staticmethod
    def _token(row: Row, request: DeviceRequest, start: int, at: int) -> int:
        token = row.tokens[at]
        if token != OWN:
            return token
        draft = at - (len(row.tokens) - row.drafts)
        if draft >= 0:
            # after a chunk of a prompt a draft model drafts, too, whatever it likes
            return request.drafts[draft] if draft < len(request.drafts) else FIRST_TOKEN
        return request.sampled.get(start + at, OWN)

    def write(self, work: Sequence[Work], epoch: int, launch: int) -> None:
        """Write the content of every row to its slots, in every group."""
        for group, pool in enumerate(self._memory.pools):
            if not pool.visibility.by_position:
                self._check_states(work, group)
                continue
            seen: dict[int, int] = {}
            for each in work:
                slots = self._slots(each, group)
                prints = each.prints[each.start : each.start + len(slots)]
                self._check_writes(each, group, slots, prints, seen)
                if pool.zeroed:
                    self._check_zeroed(each, group, slots)
                entries = partial(each.request.entries, prints, each.start)
                self._memory.write(
                    group, slots, prints, epoch=epoch, launch=launch, entries=entries
                )

    def _check_states(self, work: Sequence[Work], group: int) -> None:
        twice = _states_written_twice(work, group, self._memory.pools[group])
        self._findings.check(
            ONCE,
            not twice,
            lambda: f"states {twice[:4]} of group {group} are written twice in one launch",
        )

    def _slots(self, work: Work, group: int) -> Slots:
        """Return the engine's slots, or the table's where the device moved the row's start."""
        reads = work.row.groups[group]
        if len(reads.writes) and work.start == work.row.start:
            return reads.writes
        size = self._memory.pools[group].kernel_block_size
        positions = np.arange(work.start, min(work.end, len(reads.table) * size))
        slots: Slots = reads.table[positions // size] * size + positions % size
        return slots

    def _check_writes(
        self, work: Work, group: int, slots: Slots, prints: Fingerprints, seen: dict[int, int]
    ) -> None:
        size = self._memory.pools[group].block_size
        self._findings.check(
            NULL,
            not len(slots) or slots.min() >= size,
            lambda: (
                f"{work.row.request} writes positions {work.start}..{work.end - 1} of group "
                f"{group} into the null block"
            ),
        )
        pairs = dict(zip(slots.tolist(), prints.tolist()))  # noqa: B905 - equal by make
        twice = [slot for slot, own in pairs.items() if seen.get(slot, own) != own]
        seen.update(pairs)
        self._findings.check(
            ONCE,
            not twice and len(pairs) == len(slots),
            lambda: (
                f"slots {twice[:4]} of group {group} are written twice in one launch, "
                f"the second time by {work.row.request}"
            ),
        )

    def _check_zeroed(self, work: Work, group: int, slots: Slots) -> None:
        """Check the blocks that a row begins: they hold zeros, or content of the row itself."""
        size, begun = self._memory.pools[group].block_size, work.request.begun
        for block in (slots[slots % size == 0] // size).tolist():
            if (group, block) in begun:
                continue
            begun.add((group, block))
            sentence = (
                f"{work.row.request} begins block {block} of group {group}, which was not filled "
                "with zeros"
            )
            self._findings.check(ZEROED, self._memory.is_zero(group, block), sentence.format)

    def answer(self, work: Work, *, epoch: int, launch: int) -> tuple[int, ...]:
        """Read the content under a row; return its tokens: accepted drafts and one more."""
        wrong = [
            bad
            for group in range(len(work.row.groups))
            for bad in self._read(work, group, epoch=epoch, launch=launch)
        ]
        if not work.row.samples:
            return ()
        tokens: list[int] = []
        for offset in range(len(work.drafts) + 1):
            tokens.append(_answered(work, work.known - 1 + offset, wrong))
            if offset == len(work.drafts) or work.drafts[offset] != tokens[-1]:
                break
        self._findings.saw("drafts are accepted", len(tokens) > 1)
        self._findings.saw("drafts are rejected", len(tokens) <= len(work.drafts))
        return tuple(tokens)

    def _read(self, work: Work, group: int, *, epoch: int, launch: int) -> list[WrongRead]:
        """Compare all slots that a row reads with their expected content; return differences."""
        pool = self._memory.pools[group]
        if not pool.visibility.by_position:
            return self._state(work, group, epoch=epoch, launch=launch)
        first = pool.visibility.first_read(work.start)
        table = work.row.groups[group].table
        positions = np.arange(first, min(work.end, len(table) * pool.kernel_block_size))
        expected = work.prints[first : first + len(positions)]
        wrong = []
        for layer in pool.layers:
            ends = layer.ends(positions)
            found = self._memory.read(group, layer, table, positions[ends], epoch)
            right = np.array_equal(found, expected[ends])
            if not right and layer.entry == 1:
                wrong.append(WrongRead(pool.visibility, first, found, pool.draft))
            if layer.entry > 1:
                self._findings.saw("entries of several tokens are read", len(found))
            at = (positions[ends], epoch, launch)
            self._judge(work, group, layer, at, found, expected[ends], right=right)
        return wrong

    def _judge(
        self,
        work: Work,
        group: int,
        layer: Layer,
        where: tuple[Slots, int, int],
        found: Fingerprints,
        expected: Fingerprints,
        *,
        right: bool,
    ) -> None:
        positions, epoch, launch = where
        self._findings.situations["slots are read"] += len(positions)
        self._findings.checks.update(JUDGED)
        if right:
            return
        at = int(np.argmax(found != expected))
        pool = self._memory.pools[group]
        block = self._block(work, group, int(positions[at]))
        why = self._causes(work, group, layer, int(found[at]), block, epoch, launch)
        # only rejected drafts make the device read so far back: the host freed by its own rows
        early = positions[at] < pool.visibility.first_read(work.row.start)

        def slots() -> list[dict[str, object]]:
            borders = np.flatnonzero(np.diff(positions // pool.block_size)) + 1
            pages = np.split(np.arange(len(found)), borders)
            return [
                self._page(work, group, layer, where, found, found != expected, page)
                for page in pages
                if len(page)
            ]

        self._findings.check(
            REUSED if early else why.property,
            False,  # noqa: FBT003 - as above
            lambda: (
                f"{work.row.request} reads position {positions[at]} of {work.end} in block "
                f"{block} of group {group} ({layer.name}): {why.sentence}; "
                f"{int((found != expected).sum())} of {len(found)} slots hold something else"
            ),
            facts={
                "written_by": int(self._memory.of(group).written[block]),
                "request": work.row.request,
                "group": group,
                "block": block,
                "launch": launch,
            },
            slots=slots,
        )

    def _page(
        self,
        work: Work,
        group: int,
        layer: Layer,
        where: tuple[Slots, int, int],
        found: Fingerprints,
        wrong: npt.NDArray[np.bool_],
        page: Slots,
    ) -> dict[str, object]:
        """Return the content that a row read from one block."""
        positions, epoch, launch = where
        block = self._block(work, group, int(positions[page[0]]))
        holds = ""
        if wrong[page].any():
            first = int(page[np.argmax(wrong[page])])
            holds = self._causes(
                work, group, layer, int(found[first]), block, epoch, launch
            ).sentence
            holds = f"position {positions[first]}: {holds}"
        return {
            "launch": launch,
            "request": work.row.request,
            "group": group,
            "layer": layer.name,
            "block": block,
            "first": int(positions[page[0]]),
            "last": int(positions[page[-1]]),
            "wrong": int(wrong[page].sum()),
            "found": holds,
        }

    def _block(self, work: Work, group: int, position: int) -> int:
        pool = self._memory.pools[group]
        kernel = int(work.row.groups[group].table[position // pool.kernel_block_size])
        return kernel * pool.kernel_block_size // pool.block_size

    def _state(self, work: Work, group: int, *, epoch: int, launch: int) -> list[WrongRead]:
        """Read the state after `start` tokens, and write those that the row leaves."""
        pool, wrong = self._memory.pools[group], list[WrongRead]()
        if work.start:
            block = work.state_read(group, pool)
            self._findings.saw("a hit goes on from a state", work.row.fresh)
            for layer in pool.layers:
                found, length = self._memory.read_state(layer, block, epoch)
                right = (found, length) == (int(work.prints[work.start - 1]), work.start)
                if right:
                    self._findings.check(STATES, right, str)
                    continue
                why = self._causes(work, group, layer, found, block, epoch, launch)
                sentence = (
                    f"{work.row.request} goes on from the state of {work.start} tokens in block "
                    f"{block} of group {group}: it is one of {length} tokens, {why.sentence}"
                )
                own = why.property if length == work.start and why.property != READS else STATES
                slots = {
                    "launch": launch, "request": work.row.request, "group": group,
                    "layer": layer.name, "block": block, "first": 0, "last": work.start - 1,
                    "wrong": 1, "found": f"a state of {length} tokens: {why.sentence}",
                }  # fmt: skip
                self._findings.check(own, right, sentence.format, slots=[slots].copy)
                wrong.append(WrongRead(pool.visibility, work.start, np.array([found], np.uint64)))
        writes = work.state_writes(group, pool)
        self._findings.check(
            NULL,
            all(each.place for each in writes),
            lambda: f"{work.row.request} keeps its state in the null block",
        )
        for each in writes:
            self._memory.write_state(
                group, each.place, int(work.prints[each.length - 1]),
                length=each.length, epoch=epoch, launch=launch, part=each.part,
            )  # fmt: skip
        return wrong

    def _causes(
        self, work: Work, group: int, layer: Layer, found: int, block: int, epoch: int, launch: int
    ) -> Cause:
        return cause(
            found, work, self._memory, self.requests, marks=self._memory.of(group),
            layer=layer, block=block, launch=launch, epoch=epoch,
        )  # fmt: skip


def _states_written_twice(work: Sequence[Work], group: int, pool: Pool) -> list[int]:
    """Return the places in a pool of their own that a launch writes twice: rows have no order.

    A table may name one block in two columns, where a request does not need both states.
    """
    places = Counter(
        (state.place, part)
        for each in work
        if each.row.groups[group].use is not None
        for state in each.state_writes(group, pool)
        for part in ({state.part} if state.part else {layer.part for layer in pool.layers})
    )
    return [place for (place, _), count in places.items() if count > 1]


def _drafted(row: Row, request: DeviceRequest, drafts: Sequence[int]) -> bool:
    """Tell whether drafts are those of the device: a path of its tree, or its last tokens."""
    if row.of_tree:
        return request.tree is not None and request.tree.has(drafts)
    return [*drafts] == request.drafts[: row.drafts]


class WrongRead(NamedTuple):
    """Content that a layer of a row held instead of its own."""

    visibility: Visibility
    first: int
    """First position read."""
    found: Fingerprints
    draft: bool = False


def _answered(work: Work, position: int, wrong: Sequence[WrongRead]) -> int:
    """Return the token after a position: it follows from every slot that was read."""
    chain = work.request.chain
    chain.ensure(position + 1)
    if not wrong:
        return chain.answer(position)
    total = 0
    for bad in wrong:
        folds = fold(bad.found, bad.first)
        at = bad.visibility.first_read(position) - bad.first
        last = min(position - bad.first, len(folds) - 1)
        total += folds[last] - (folds[at - 1] if 0 < at <= last else 0)
        total -= chain.part(bad.visibility, position)
    return token_of(mix(chain.answer(position)) + total & MASK)
