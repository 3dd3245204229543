"""A paged engine of tensors: pages, canary words, one persistent buffer for tables and for slots.

Its answers follow from the content of all slots that it reads. Prompts that begin with the whole
blocks of an earlier one hit them; the block after the hit is copied, if the earlier prompt had it.
Each planted fault is one wrong line of such an engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from kvproof.suites.tests.live.needs import torch

from kvproof.harness.live import answers  # isort: skip
from kvproof.harness.live.answers import Answer  # isort: skip
from kvproof.harness.live.tables import Group, Launch, Reads, Row, Tables  # isort: skip
from kvproof.kernels.canary.canary import Canary, Rows  # isort: skip

SIZE, BLOCKS, REQUESTS, LENGTH, PADDED = 4, 40, 6, 64, 4
FAULTS = (
    "a table off by a block",
    "a slot mapping shifted",
    "a stale graph buffer",
    "a late copy",
    "a freed block reused",
    "a padded row that writes",
)


@dataclass
class Request:
    name: str
    index: int
    prompt: list[int]
    new: int
    blocks: list[int]
    computed: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def ids(self) -> list[int]:
        return self.prompt + self.tokens


class Copy(NamedTuple):
    source: int
    target: int


class ToyPaged:
    """One engine; `caching` off makes it a cold one, which the canary does not watch."""

    def __init__(self, fault: str = "", *, caching: bool = True, share: float = 1.0) -> None:
        self.fault, self.caching = fault, caching
        self.free = list(range(1, BLOCKS))
        self.running: list[Request] = []
        self.ended: dict[str, Request] = {}
        self.kept: list[Request] = []
        self.pages = torch.zeros((BLOCKS, SIZE), dtype=torch.float64)
        self.canary = Canary.beside(BLOCKS, SIZE, "cpu", share=share)
        self.tables = Tables([Group(SIZE)], BLOCKS)
        self.known = torch.zeros((REQUESTS, LENGTH), dtype=torch.int32)
        self.table = torch.zeros((REQUESTS, LENGTH // SIZE), dtype=torch.int32)
        self.copies: list[Copy] = []
        self.steps = 0

    def add(self, name: str, prompt: Sequence[int], new: int) -> None:
        """Take a request, behind the hit that it has."""
        hit = self._hit(prompt) if self.caching else []
        count = -(-(len(prompt) + new) // SIZE)
        fresh = [self._take() for _ in range(count - len(hit))]
        index = min({*range(REQUESTS)} - {each.index for each in self.running})
        own = Request(name, index, list(prompt), new, [*hit, *fresh], len(hit) * SIZE)
        if hit:
            self._fork(own, len(hit))
        self.known[index, : len(prompt)] = torch.tensor(prompt)
        self.running.append(own)

    def _take(self) -> int:
        if self.fault == "a freed block reused" and self.running and self.steps > 2:
            self.fault = ""
            return self.running[0].blocks[1]
        return self.free.pop()

    def _hit(self, prompt: Sequence[int]) -> list[int]:
        best: list[int] = []
        for other in self.kept:
            same = 0
            for left, right in zip(other.prompt, prompt[:-1], strict=False):
                if left != right:
                    break
                same += 1
            if same // SIZE > len(best):
                best = other.blocks[: same // SIZE]
        return best

    def _fork(self, own: Request, hit: int) -> None:
        """Copy the block behind the hit: its first tokens may be equal."""
        other = next(each for each in self.kept if each.blocks[:hit] == own.blocks[:hit])
        end = len(other.prompt)
        place = hit * SIZE
        same = 0
        while place + same < min(end, len(own.prompt) - 1) and same < SIZE:
            if other.prompt[place + same] != own.prompt[place + same]:
                break
            same += 1
        if same:
            self.copies.append(Copy(other.blocks[hit], own.blocks[hit]))
            own.computed += same

    def _apply(self, copies: Sequence[Copy]) -> None:
        for source, target in copies:
            self.pages[target] = self.pages[source]
        self.canary.copy(copies)

    def step(self) -> None:
        """Run one launch: copies, writes, reads, answers."""
        if not self.running:
            return
        copies, self.copies = self.copies, []
        if self.fault != "a late copy":
            self._apply(copies)
        counts = [min(9, len(each.ids) - each.computed) for each in self.running]
        starts = np.cumsum([0, *counts])
        places = [
            range(each.computed, each.computed + count)
            for each, count in zip(self.running, counts, strict=True)
        ]
        inputs = [
            each.ids[at] for each, own in zip(self.running, places, strict=True) for at in own
        ]
        positions = [at for own in places for at in own]
        table, slots = self._tables(places)
        self._note(table, slots, starts, places, copies)
        if self.fault != "a stale graph buffer" or self.steps % 3 != 2:
            self.table[: len(table)] = torch.from_numpy(table)
        rows = Rows(
            self.known,
            torch.zeros(REQUESTS, dtype=torch.int64),
            torch.tensor([each.index for each in self.running]),
            torch.tensor(inputs, dtype=torch.int32),
            torch.tensor(positions),
            torch.tensor(starts, dtype=torch.int32),
        )
        mapping = torch.from_numpy(slots)
        self._write(inputs, positions, mapping)
        if self.caching:  # the canary watches it
            self.canary.write(rows, mapping)
            self.canary.check(rows, self.table[: len(self.running)], entry=SIZE)
        self._answer(places)
        if self.fault == "a late copy":
            self._apply(copies)
        self.steps += 1

    def _tables(self, places: Sequence[range]) -> tuple[Any, Any]:
        table = np.zeros((len(self.running), LENGTH // SIZE), np.int32)
        slots = []
        for at, (each, own) in enumerate(zip(self.running, places, strict=True)):
            table[at, : len(each.blocks)] = each.blocks
            slots += [each.blocks[place // SIZE] * SIZE + place % SIZE for place in own]
        if self.fault == "a table off by a block" and self.steps > 3:
            table[0, :-1] = table[0, 1:]
        if self.fault == "a slot mapping shifted" and self.steps == 3:
            slots[-1] ^= 1
        stale = self.running[0].blocks[0] * SIZE
        spare = stale if self.fault == "a padded row that writes" else -1
        slots += [spare] * (-len(slots) % PADDED)
        return table, np.array(slots, np.int64)

    def _note(
        self, table: Any, slots: Any, starts: Any, places: Sequence[range], copies: Sequence[Copy]
    ) -> None:
        rows = [
            Row(each.name, own.start, (Reads(table[at], slots[starts[at] : starts[at + 1]]),))
            for at, (each, own) in enumerate(zip(self.running, places, strict=True))
        ]
        self.tables.launches.append(Launch(tuple(rows), (slots[starts[-1] :],), tuple(copies)))

    def _write(self, inputs: Sequence[int], positions: Sequence[int], slots: torch.Tensor) -> None:
        content = [token + at / 64 for token, at in zip(inputs, positions, strict=True)]
        content += [0.5] * (len(slots) - len(content))
        flat = self.pages.view(-1)
        for slot, value in zip(slots.tolist(), content, strict=True):
            if slot >= 0:
                flat[slot] = value

    def _answer(self, places: Sequence[range]) -> None:
        for at, (each, own) in enumerate(zip(list(self.running), places, strict=True)):
            each.computed = own.stop
            if each.computed < len(each.ids):
                continue
            read = torch.arange(each.computed)
            values = self.pages[self.table[at].long()[read // SIZE], read % SIZE]
            score = float((values * (1 + read % 7)).sum())
            each.tokens.append(int(score * 64) % 50 + 1)
            each.logprobs.append(-score / 1000)
            self.known[each.index, len(each.ids) - 1] = each.tokens[-1]
            if len(each.tokens) == each.new:
                self._end(each)

    def _end(self, own: Request) -> None:
        self.running.remove(own)
        self.ended[own.name] = own
        self.kept.append(own)  # its blocks stay for hits

    def answers(self) -> dict[str, Answer]:
        return {
            name: Answer(tuple(each.tokens), tuple(each.logprobs))
            for name, each in self.ended.items()
        }


PROMPTS = {
    "a": ([*range(1, 22)], 12),
    "b": ([*range(1, 15), 40, 41], 5),
    "c": ([*range(1, 19), 30], 9),
    "d": ([7, 8, 9, *range(20, 31)], 6),
    "e": ([*range(1, 22), 3, 4], 4),
}


class Verdicts(NamedTuple):
    """Verdict of each oracle alone."""

    answers: str
    tables: str
    content: str


def drive(fault: str = "", *, share: float = 1.0) -> tuple[Verdicts, ToyPaged]:
    """Serve five requests that come one after the other, and let each oracle judge."""
    engine = ToyPaged(fault, share=share)
    for name, (prompt, new) in PROMPTS.items():
        engine.add(name, prompt, new)
        for _ in range(4):
            engine.step()
    while engine.running:
        engine.step()
    tokens = {name: each.ids for name, each in engine.ended.items()}
    told = engine.tables.judge(tokens, {})
    judged = answers.judge(engine.answers(), cold(), cold())
    wrong = engine.canary.poll().wrong
    found = Verdicts(judged.verdict, "fail" if told else "pass", "fail" if wrong else "pass")
    return found, engine


@cache
def cold() -> dict[str, Answer]:
    """Answer each request in an engine of its own."""
    found = {}
    for name, (prompt, new) in PROMPTS.items():
        engine = ToyPaged(caching=False)
        engine.add(name, prompt, new)
        while engine.running:
            engine.step()
        found |= engine.answers()
    return found
