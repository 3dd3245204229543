"""A paged engine of a hundred lines with a prefix cache, and faults that can be switched on."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from kvproof.harness.contract.whole_engine import (
    CacheEvent,
    EngineConfig,
    EngineRequest,
    HitCounts,
    Holdings,
    Output,
    Reads,
    Row,
)
from kvproof.harness.contract.whole_engine_traits import DraftMethod, WholeEngineTraits
from kvproof.harness.model.records import Namespace
from kvproof.harness.whole_engine.device import ShadowDevice
from kvproof.harness.whole_engine.driver import Driver
from kvproof.harness.whole_engine.findings import Findings
from kvproof.harness.whole_engine.memory import DeviceMemory, Layer, Pool

FAULTS = {
    "hit_too_long": "reads_return_own_content",
    "salt_ignored": "namespaces_are_separate",
    "media_ignored": "spans_are_separate",
    "reset_keeps": "no_hit_across_epochs",
    "drafts_count": "device_and_scheduler_agree_on_computed_tokens",
    "table_is_late": "kernel_tables_address_their_blocks",
    "slots_shift": "slot_mappings_follow_the_tables",
    "answers_twice": "answers_equal_the_greedy_chain",
    "keeps_a_block": "an_idle_engine_holds_nothing",
    "event_lost": "events_replay_to_the_index",
    "never_ends": "every_request_ends",
    "raises": "the_engine_keeps_running",
    "wrong_adapter": "a_row_has_its_requests_adapter_and_media",
    "null_block": "the_null_block_is_never_written",
    "not_zeroed": "new_blocks_are_zeroed",
    "runs_asleep": "nothing_runs_on_memory_that_is_away",
    "sleep_keeps": "reads_return_own_content",
    "short_hits": "a_hit_that_is_possible_is_given",
    "reads_anyway": "a_request_that_may_not_read_computes_all",
    "evicts_two": "a_block_leaves_the_index_for_another_one",
    "counts_one_more": "published_hits_are_those_of_the_history",
    "no_parents": "events_lead_back_to_a_requests_tokens",
    "stores_ahead": "only_accepted_drafts_stay",
    "gives_twice": "a_launch_writes_no_slot_twice_with_unlike_content",
    "stale_token": "a_launch_computes_the_requests_own_tokens",
    "frees_early": "encoder_outputs_are_there_when_they_are_read",
}
"""What can be switched on, and the property that it breaks first."""

NO_QUEUE = "every request runs at once, or is tried again in the next step"
TRAITS = WholeEngineTraits(
    features=(
        "chunks",
        "preemption",
        "events",
        "reset",
        "reset of running requests",
        "salts",
        "adapters",
        "media",
        "encoder",
        "unread",
        "zeroing",
    ),
    refuses={"ahead": "it asks for its answers at once", "queue": NO_QUEUE},
    block_sizes=(4, 16),
    sleep_levels=(0, 1, 1, 2),
    drafts=(DraftMethod(name="guess"),),
)
"""Traits of the toy: a second whole engine, of which no generic file knows."""


@dataclass
class Running:
    request: EngineRequest
    tokens: list[int]
    blocks: list[int] = field(default_factory=list)
    computed: int = 0
    fresh: bool = True
    drafts: list[int] = field(default_factory=list)
    rejected: bool = False
    """A draft of the last step was rejected."""


class ToyEngine:
    evicts_singly = True
    silent_groups: Collection[int] = ()
    takes_ends = ("take_ends",)

    def __init__(self, config: EngineConfig, findings: Findings, fault: str) -> None:
        self.config, self.fault, self.size = config, fault, config.block_size
        pools = [
            Pool(
                kind,
                self.size,
                self.size,
                [
                    Layer(f"{group}.{i}", np.zeros((config.blocks, self.size, 2), np.uint64))
                    for i in range(kind.layers)
                ],
                zeroed=True,
            )
            for group, kind in enumerate(config.groups)
        ]
        drafts = config.drafts.count if config.drafts else 0
        memory = DeviceMemory(pools, config.blocks)
        self.device = ShadowDevice(memory, findings, most_drafts=drafts, encodes=True)
        self.free = OrderedDict.fromkeys(range(1, config.blocks))
        self.cached: dict[Any, int] = {}
        self.running: dict[str, Running] = {}
        self.published: list[CacheEvent] = []
        self.handed_out: set[int] = set()
        self.counted, self.admitted = [0, 0], set[str]()
        self.steps = 0
        self.newest: list[int] = []
        """Blocks that another request of this step has taken: only one fault looks."""
        self.paused = False

    def submit(self, request: EngineRequest) -> None:
        self.running[request.id] = Running(request, list(request.prompt))

    def abort(self, request: str) -> None:
        self._release(self.running.pop(request))

    def _release(self, run: Running) -> None:
        others = [each for each in self.running.values() if each is not run]
        shared = {block for other in others for block in other.blocks}
        kept = 1 if self.fault == "keeps_a_block" and len(run.blocks) > 2 else 0
        for block in reversed(run.blocks[kept:]):
            if block not in shared:
                self.free[block] = None
        run.blocks, run.computed, run.fresh = [], 0, True

    def _key(self, run: Running, stop: int) -> tuple[Any, ...]:
        own = run.request
        salt = "" if self.fault == "salt_ignored" else own.salt
        media = tuple(each for each in own.media if each.start < stop)
        media = () if self.fault == "media_ignored" else media
        return tuple(run.tokens[:stop]), salt, own.adapter, own.adapter_version, media

    def _match(self, run: Running) -> None:
        if not run.request.reads_cache and self.fault != "reads_anyway":
            return
        while (len(run.blocks) + 1) * self.size < len(run.tokens):
            block = self.cached.get(self._key(run, (len(run.blocks) + 1) * self.size))
            if block is None or (self.fault == "short_hits" and len(run.blocks) == 1):
                break
            self.free.pop(block, None)
            run.blocks.append(block)
        run.computed = len(run.blocks) * self.size
        if self.fault == "hit_too_long" and run.computed and run.computed + 1 < len(run.tokens):
            run.computed += 1

    def _take(self) -> int | None:
        if not self.free:
            return None
        block, _ = self.free.popitem(last=False)
        self.handed_out.add(block)
        gone = [block, *list(self.free)[: self.fault == "evicts_two"]]
        for key in [key for key, other in self.cached.items() if other in gone]:
            del self.cached[key]
            if self.fault != "event_lost":
                self.published.append(CacheEvent("removed", str(hash(key))))
        if self.fault != "not_zeroed":
            for pool in self.device.memory.pools:
                for layer in pool.layers:
                    layer.words[block] = 0
        return block

    def _room(self, run: Running, stop: int) -> bool:
        while len(run.blocks) * self.size < stop:
            block = self._take() if not self.newest else self.newest.pop()
            if block is not None:
                run.blocks.append(block)
                continue
            victim = self._youngest(run)
            self._release(victim)
            if victim is run:
                return False
        return True

    def _youngest(self, run: Running) -> Running:
        """Return the last request that holds blocks: the oldest one always goes on."""
        later = reversed(self.running.values())
        return next(each for each in later if each is run or each.blocks)

    def _row(self, run: Running, stop: int) -> Row:
        known = len(run.tokens)
        drafts = run.drafts if stop == known else []
        tokens = [*run.tokens[run.computed : stop], *drafts]
        if self.fault == "stale_token" and not run.fresh:
            tokens[0] = run.tokens[0]
        owned = list(run.blocks)
        table = np.array(owned, np.int64)
        if self.fault == "table_is_late" and len(owned) > 2:
            table = np.array([*owned[:-2], owned[-1], owned[-2]], np.int64)
        if self.fault == "null_block" and len(owned) > 3:
            owned[-1] = table[-1] = 0
        at = np.arange(run.computed, run.computed + len(tokens))
        writes = table[at // self.size] * self.size + at % self.size
        if self.fault == "slots_shift" and len(owned) > 2:
            writes = np.roll(writes, 1) if len(writes) > 1 else writes + 1
        if run.request.id not in self.admitted:
            self._count(run)
        adapter = (run.request.adapter, run.request.adapter_version)
        row = Row(
            request=run.request.id,
            start=run.computed,
            tokens=tuple(tokens),
            drafts=len(drafts),
            samples=stop == known,
            fresh=run.fresh,
            device_start=False,
            adapter=("", 0) if self.fault == "wrong_adapter" else adapter,
            media=run.request.media,
            groups=tuple(Reads(table, writes, owned) for _ in self.config.groups),
        )
        run.fresh = False
        return row

    def _count(self, run: Running) -> None:
        self.admitted.add(run.request.id)
        if run.request.reads_cache and self.config.caching:
            self.counted[0] += len(run.request.prompt)
            self.counted[1] += run.computed + (self.fault == "counts_one_more")

    def step(self) -> list[Output]:
        if self.paused and self.fault != "runs_asleep":
            return []
        self.steps += 1
        assert self.fault != "raises" or self.steps < 20, "the toy raises"
        chosen: list[tuple[Running, int]] = []
        for run in list(self.running.values())[: self.config.max_requests]:
            if self.fault == "never_ends" and run.request.priority:
                continue
            if not run.blocks:
                self._match(run)
            stop = min(len(run.tokens), run.computed + self.config.token_budget)
            if self._room(run, stop + len(run.drafts)):
                chosen.append((run, stop))
            if self.fault == "gives_twice" and run.fresh:
                self.newest = run.blocks[-1:]
        self.newest = []
        self._encode([run for run, _ in chosen])
        launch = self.device.launch([self._row(run, stop) for run, stop in chosen])
        answers = self.device.answers(launch)
        taken = zip(chosen, answers, strict=True)
        return [self._take_answer(run, stop, own) for (run, stop), own in taken]

    def _encode(self, chosen: list[Running]) -> None:
        """Keep the encoder's outputs of all media whose request runs."""
        early = self.fault == "frees_early"
        media = [
            each.content for run in chosen if run.fresh or not early for each in run.request.media
        ]
        freed = self.device.encoder.there.difference(media)
        fresh = {run.request.id: range(len(run.request.media)) for run in chosen if run.fresh}
        self.device.encoder.step(freed, fresh)

    def _take_answer(self, run: Running, stop: int, answer: tuple[int, ...]) -> Output:
        longest = min(len(run.request.prompt) + run.request.answers, self.config.max_length)
        left = longest - len(run.tokens)
        run.computed = stop + max(0, len(answer) - 1)
        if self.fault == "drafts_count" and answer:
            run.computed = stop + len(run.drafts)
        answer = answer[:left]
        if stopped := run.request.stop in answer:
            answer = answer[: answer.index(run.request.stop) + 1]
        run.tokens += answer
        run.rejected = 0 < len(answer) <= len(run.drafts)
        run.drafts = self.device.drafts(run.request.id) if answer else []
        self._store(run)
        if self.fault == "stores_ahead" and run.rejected:
            self._release(run)  # so that it meets what it has stored
        done = stopped or len(run.tokens) == longest
        if done:
            self.abort(run.request.id)
        if self.fault == "answers_twice" and len(answer) == 1 and self.steps % 7 == 0:
            answer = (answer[0], answer[0])
        return Output(run.request.id, answer, ("stop" if stopped else "length") if done else "")

    def _store(self, run: Running) -> None:
        if not self.config.caching:
            return
        ahead = self.fault == "stores_ahead" and run.rejected
        known = len(run.tokens) if ahead else min(run.computed, len(run.tokens))
        for index in range(min(known // self.size, len(run.blocks))):
            key = self._key(run, (index + 1) * self.size)
            if key not in self.cached and run.blocks[index] not in self.cached.values():
                self.cached[key] = run.blocks[index]
                self._publish(run, key, index)

    def _publish(self, run: Running, key: Any, index: int) -> None:
        first = 0 if self.fault == "no_parents" else index
        parent = str(hash(self._key(run, first * self.size))) if first else ""
        tokens = tuple(run.tokens[index * self.size : (index + 1) * self.size])
        own = Namespace(run.request.adapter or None)
        stored = CacheEvent("stored", str(hash(key)), parent, tokens=tokens, namespace=own)
        self.published.append(stored)

    def idle(self) -> bool:
        return not self.running or (self.paused and self.fault != "runs_asleep")

    def statuses(self) -> dict[str, str]:
        return dict.fromkeys(self.running, "running")

    def holders(self) -> list[tuple[str, int, bool, int]]:
        return []

    def reset(self, *, running: bool) -> bool:
        if self.running and not running:
            return False
        for run in self.running.values():
            self._release(run)
        if self.fault != "reset_keeps":
            self.cached.clear()
            self.published.append(CacheEvent("cleared"))
        return True

    def sleep(self, *, level: int, keep: bool) -> None:
        self.paused = True
        for name in () if keep else list(self.running):
            self.abort(name)
        if level:
            self.device.sleep()
            for run in self.running.values():
                self._release(run)
            if self.fault != "sleep_keeps":
                self.cached.clear()
                self.published.append(CacheEvent("cleared"))

    def wake(self, *, part: str) -> None:
        self.paused = part == "weights"

    def events(self) -> list[CacheEvent]:
        published, self.published = self.published, []
        return published

    def unpublished(self) -> list[CacheEvent]:
        return []

    def found(self) -> dict[tuple[str, int], list[int]]:
        return {(str(hash(key)), 0): [block] for key, block in self.cached.items()}

    def given(self) -> dict[str, set[int]]:
        given, self.handed_out = self.handed_out, set()
        return {"": given}

    def hit_counts(self) -> HitCounts:
        return HitCounts(*self.counted)

    def holdings(self) -> Holdings:
        counts = {"running": len(self.running)}
        return Holdings(len(self.free), self.config.blocks - 1, counts)

    def close(self) -> None:
        self.running.clear()


def driver(config: EngineConfig, fault: str = "") -> Driver:
    return Driver(partial(ToyEngine, fault=fault), config)
