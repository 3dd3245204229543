"""Recordings whose first files are gone: a right engine is judged clean from any file on."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kvproof.harness.adapters.reference.target import make_target
from kvproof.harness.contract import operations as ops
from kvproof.harness.contract.target import Namespace, Released, Request, Scheduled, TargetConfig
from kvproof.harness.recorder.entry import Arrival
from kvproof.harness.recorder.log_writer import Cache, LogWriter, Settings
from kvproof.harness.recorder.verdict import long_session
from kvproof.suites.tests.recorder.record_kit import KEY, admit, judged, only
from kvproof.suites.tests.recorder.record_kit import writer as toy_writer

SEEDS, OPERATIONS, LIMIT = 12, 200, 3_000


class Recorded:
    """The reference under a random load, with the recorder that an engine would have."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.random = random.Random(seed)
        config = TargetConfig(self.random.choice((12, 24, 40)), self.random.choice((1, 2, 4)))
        self.session = long_session(make_target(config), config)
        cache = Cache("toy", "1", config.num_blocks, config.block_size)
        settings = Settings(folder, LIMIT, KEY if seed % 2 else b"")
        self.writer = LogWriter(cache, settings, lambda tokens, a, b: tokens[a:b])
        self.trunk = [self.random.randrange(9) for _ in range(60)]
        self.live: dict[str, list[int]] = {}
        self.longest = 7 * config.block_size
        self.names = 0

    def run(self) -> None:
        for _ in range(OPERATIONS):
            draw = self.random.random()
            if draw < 0.35:
                self.admit()
            elif draw < 0.98 and self.live:
                name = self.random.choice(list(self.live))
                (self.extend if draw < 0.8 else self.release)(name)
            elif not self.live:
                answer = self.session.apply(ops.Reset())
                self.writer.reset(done=isinstance(answer, Released))

    def admit(self) -> None:
        count = self.random.randint(1, self.longest)
        same = self.random.randint(0, count)
        tokens = self.trunk[:same] + [self.random.randrange(3) for _ in range(count - same)]
        self.names += 1
        name, salt = f"q{self.names}", self.random.choice((None, None, "tenant"))
        store = self.random.random() < 0.9
        request = Request(name, tuple(tokens), Namespace(salt=salt), store=store)
        answer = self.session.apply(ops.Admit(request, self.part(count)))
        if isinstance(answer, Scheduled):
            self.live[name] = tokens
            self.writer.admit(
                tokens, Arrival(name, salt=salt, store=store), known=count,
                hit=answer.hit, stop=answer.stop, blocks=answer.blocks[0],
            )  # fmt: skip
            self.complete(name)

    def extend(self, name: str) -> None:
        tokens, before = self.live[name], self.session.live[name]
        held = len(before.groups[0])
        more = () if before.computed < len(tokens) else (self.random.randrange(3),)
        left = len(tokens) + len(more) - before.computed
        answer = self.session.apply(ops.Extend(name, more, self.part(left)))
        if not isinstance(answer, Scheduled):
            self.release(name, "preempt")
            return
        tokens += more
        self.writer.step(name, len(tokens), answer.stop, answer.blocks[0][held:])
        self.complete(name)

    def part(self, count: int) -> int | None:
        return None if self.random.random() < 0.5 else self.random.randint(1, count)

    def complete(self, name: str) -> None:
        while self.session.steps:
            self.session.apply(ops.Complete())
        self.writer.table(name, list(self.session.live[name].groups[0]))

    def release(self, name: str, verb: str = "") -> None:
        verb = verb or self.random.choice(("finish", "cancel", "preempt"))
        held = list(self.session.live[name].groups[0])
        self.session.apply(ops.OPERATIONS[verb](name))
        self.writer.release(name, verb, held)
        del self.live[name]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_right_engine_is_judged_clean_from_any_file_on(tmp_path: Path, seed: int) -> None:
    Recorded(seed, tmp_path).run()
    paths = only(tmp_path).paths
    assert only(tmp_path).dropped > 0
    trusted = 0
    for path in paths:
        found = judged(tmp_path)
        assert found.broken is None
        trusted += found.trusted
        path.unlink()
    assert trusted > 0


def _rotated(to: LogWriter) -> None:
    while to._segments.number < 6:
        to.evict([60])


def test_nothing_is_trusted_any_more_once_all_was_forgotten(tmp_path: Path) -> None:
    to = toy_writer(tmp_path, limit=1_600)
    admit(to, "old", 10, [1, 2, 3])
    to.release("old", "finish", [1, 2, 3])
    _rotated(to)
    to.reset(done=True)
    admit(to, "new", 10, [1, 2, 4], hit=8)
    broken = judged(tmp_path).broken
    assert broken is not None
    assert broken.violation.property == "nothing_is_read_before_it_is_written"


def test_what_is_being_loaded_is_not_missed_in_a_later_file_either(tmp_path: Path) -> None:
    to = toy_writer(tmp_path, limit=1_600)
    tokens = list(range(100, 110))
    to.admit(tokens, Arrival("slow"), known=10, hit=0, stop=9, blocks=[1, 2, 3], loaded=9)
    _rotated(to)
    admit(to, "quick", 11, [4, 5, 6])
    assert only(tmp_path).header.capped
    assert judged(tmp_path).broken is None


def test_a_reset_may_be_refused_for_what_earlier_files_told(tmp_path: Path) -> None:
    to = toy_writer(tmp_path, limit=1_600)
    admit(to, "first", 10, [1, 2, 3])
    to.release("first", "finish", [1, 2, 3], fenced=True)
    _rotated(to)
    to.reset(done=False)
    assert judged(tmp_path).broken is None
