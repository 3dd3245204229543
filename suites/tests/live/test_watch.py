"""Hooks on a model runner, and planted faults, on a runner with the fields that they use."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvproof.harness.contract.whole_engine import EngineRequest, GroupKind
from kvproof.harness.whole_engine.attention import READS
from kvproof.harness.whole_engine.findings import Findings
from kvproof.harness.whole_engine.requests import chain_of
from kvproof.suites.tests.live.needs import torch

from kvproof.harness.adapters.vllm_live.faults import FAULTS  # isort: skip
from kvproof.harness.adapters.vllm_live.watch import GREEDY, Watch  # isort: skip

SIZE, BLOCKS, PADDED, WORDS = 16, 40, 8, 1000
PROMPTS = {"a": range(5, 45), "b": range(5, 37), "c": range(905, 940)}
"""b begins as a does."""
STEPS = 24
FULL = (GroupKind(),)


class Runner:
    """Decodes three requests after their prompts; c comes later."""

    device, max_num_reqs, max_model_len = torch.device("cpu"), 4, 128

    def __init__(self) -> None:
        self.req_states = SimpleNamespace(
            req_id_to_index={},
            add_request=lambda req_id, all_token_ids: None,
            prefill_len=SimpleNamespace(np=np.array([len(each) for each in PROMPTS.values()])),
        )
        self.kv_connector = SimpleNamespace(set_disabled=lambda _: None)
        self.lora_state = SimpleNamespace(lora_requests={})
        self.model = SimpleNamespace(compute_logits=lambda hidden: hidden)
        self.table = torch.zeros((4, 8), dtype=torch.int32)
        self.block_tables = SimpleNamespace(block_tables=[SimpleNamespace(gpu=self.table)])
        self.tokens = {name: list(prompt) for name, prompt in PROMPTS.items()}
        self.computed = {"a": 0, "b": 32 - SIZE, "c": 0}  # b hits one block of a
        self.buffer = torch.zeros_like(self.table)
        blocks = iter(range(1, BLOCKS))
        for row, name in enumerate(PROMPTS):
            self.req_states.req_id_to_index[name] = row
            self.table[row, :5] = torch.tensor([next(blocks) for _ in range(5)])
        self.table[1, 0] = self.table[0, 0]

    def owned(self, name: str) -> list[list[int]]:
        return [self.table[self.req_states.req_id_to_index[name]].tolist()]

    def batch(self, names: list[str]) -> Any:
        """A step: what is left of each prompt, or the next token."""
        parts = [(self.computed[name], len(self.tokens[name])) for name in names]
        starts = np.cumsum([0, *(stop - start for start, stop in parts)])
        spare = -int(starts[-1]) % PADDED
        ids = [
            token
            for name, (start, stop) in zip(names, parts, strict=True)
            for token in self.tokens[name][start:stop]
        ]
        places = [at for start, stop in parts for at in range(start, stop)]
        index = np.array([self.req_states.req_id_to_index[name] for name in names])
        return SimpleNamespace(
            req_ids=names,
            num_reqs=len(names),
            num_tokens=int(starts[-1]),
            num_tokens_after_padding=int(starts[-1]) + spare,
            num_scheduled_tokens=np.diff(starts),
            num_draft_tokens_per_req=None,
            is_prefilling_np=np.array([self.computed[name] < len(PROMPTS[name]) for name in names]),
            idx_mapping=torch.from_numpy(index),
            idx_mapping_np=index,
            expanded_idx_mapping=torch.from_numpy(index),
            cu_num_logits_np=np.arange(len(names) + 1),
            logits_indices=torch.from_numpy(starts[1:] - 1),
            query_start_loc=torch.from_numpy(starts.astype(np.int32)),
            query_start_loc_np=starts,
            positions=torch.tensor(places + [0] * spare),
            input_ids=torch.tensor(ids + [0] * spare, dtype=torch.int32),
            num_computed_tokens_np=np.array([start for start, _ in parts]),
        )

    def prepare_attn(self, batch: Any) -> Any:
        count = batch.num_reqs
        self.buffer[:count] = self.table[batch.idx_mapping]
        rows = np.repeat(np.arange(count), np.diff(batch.query_start_loc_np))
        places = batch.positions[: batch.num_tokens]
        own = self.buffer[torch.from_numpy(rows), places // SIZE].long() * SIZE + places % SIZE
        slots = torch.full((1, batch.num_tokens_after_padding), -1)
        slots[0, : batch.num_tokens] = own
        return (self.buffer[:count],), slots

    def sample(self, hidden: Any, batch: Any, grammar: Any) -> Any:
        del batch, grammar
        return self.model.compute_logits(hidden).argmax(1).tolist()


class History:
    """One history; `fault` is planted in it."""

    def __init__(self, fault: str = "") -> None:
        self.runner, self.findings = Runner(), Findings()
        self.words = torch.zeros((BLOCKS, SIZE), dtype=torch.int64)
        self.watch = Watch(self.runner, FULL, [self.words])
        self.watch.fault = FAULTS[fault]() if fault else None
        self.device = self.watch.begin(self.findings, self.runner.owned, 0)
        for name, prompt in PROMPTS.items():
            request = EngineRequest(name, tuple(prompt), answers=STEPS)
            self.device.register(request, chain_of(request, FULL))
            self.runner.req_states.add_request(req_id=name, all_token_ids=list(prompt))

    def step(self, names: list[str], fresh: list[str]) -> None:
        arrived = [SimpleNamespace(req_id=name, mm_features=()) for name in fresh]
        self.watch.step(SimpleNamespace(scheduled_new_reqs=arrived, total_num_scheduled_tokens=1))
        batch = self.runner.batch(names)
        self.runner.prepare_attn(batch)
        drawn = self.runner.sample(torch.rand(len(names), WORDS), batch, None)
        for name, token in zip(names, drawn, strict=True):
            self.runner.computed[name] = len(self.runner.tokens[name])
            self.runner.tokens[name].append(token)

    def run(self) -> History:
        self.step(["a"], ["a"])
        self.step(["a", "b"], ["b"])
        for _ in range(4):
            self.step(["a", "b"], [])
        self.step(["a", "c"], ["c"])
        for _ in range(STEPS - 8):
            self.step(["a", "b", "c"], [])
        return self


def test_a_right_engine_is_silent_and_answers_what_was_drawn() -> None:
    history = History().run()
    assert history.findings.wrong is None
    assert history.findings.checks[READS] > 50
    (seen,) = history.watch.seen()
    assert (seen.wrong, seen.slots) == (0, history.findings.situations["slots are read"])
    rows = history.watch.logits.take()
    for name, own in rows.items():
        chain = history.device.requests[name].chain
        assert history.runner.tokens[name] == chain.tokens[: len(history.runner.tokens[name])]
        assert max(own) == len(history.runner.tokens[name]) - 2
        assert max(each.max() for each in own.values()) < GREEDY  # those of the model are kept


SEEN = {
    "a table off by a block": ("content", "tables"),
    "a slot mapping shifted": ("content", "tables"),
    "a stale graph buffer": ("content",),
    "a freed block reused": ("content", "tables"),
    "a padded row that writes": ("content", "tables"),
}


@pytest.mark.parametrize("fault", SEEN)
def test_each_fault_is_seen_by_its_oracles(fault: str) -> None:
    history = History(fault).run()
    assert history.watch.fault is not None
    assert history.watch.fault.struck
    (seen,) = history.watch.seen()
    found = {"content": seen.wrong > 0, "tables": history.findings.wrong is not None}
    assert tuple(name for name, wrong in found.items() if wrong) == SEEN[fault]
    assert history.watch.read_by(seen) in PROMPTS


def test_what_another_tier_wrote_is_taken_from_the_canary() -> None:
    history = History()
    history.step(["a"], ["a"])
    block, away = int(history.runner.table[0, 0]), BLOCKS - 1
    history.words[away] = history.words[block]  # a store, and a load into another block
    history.runner.table[1, 0] = away
    history.watch.loaded.add(away)
    history.step(["a", "b"], ["b"])
    assert history.findings.wrong is None
    assert history.watch.seen()[0].wrong == 0


def test_content_that_a_tier_lost_is_wrong() -> None:
    history = History()
    history.step(["a"], ["a"])
    history.runner.table[1, 0] = BLOCKS - 1
    history.watch.loaded.add(BLOCKS - 1)
    history.step(["a", "b"], ["b"])
    assert history.findings.wrong is not None
    assert history.watch.seen()[0].wrong == SIZE


def test_a_reset_makes_earlier_words_wrong() -> None:
    history = History()
    history.step(["a"], ["a"])
    history.device.epoch += 1
    prompt = list(PROMPTS["b"])
    history.runner.req_states.add_request(req_id="b", all_token_ids=prompt)
    history.step(["a", "b"], ["b"])
    assert history.watch.seen()[0].wrong == SIZE


def test_a_cold_engine_is_not_watched() -> None:
    history = History()
    history.step(["a"], ["a"])
    before = history.device.submitted
    with history.watch.cold(history.device):
        history.runner.prepare_attn(history.runner.batch(["a"]))
    assert history.device.submitted == before
    assert history.watch.logits.take()
