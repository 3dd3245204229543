"""vLLM's hooks and planted faults, on a runner with the fields that they use."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvproof.suites.tests.live.needs import torch

from kvproof.harness.live import vllm_live  # isort: skip
from kvproof.harness.live.vllm_faults import FAULTS  # isort: skip
from kvproof.harness.live.vllm_hooks import Hooks, Unsupported  # isort: skip

SIZE, BLOCKS, PADDED = 16, 40, 8
PROMPTS = {"a": list(range(40)), "b": list(range(32)), "c": list(range(900, 935))}
"""b begins as a does."""
STEPS = 24


class FullAttentionSpec:
    block_size = SIZE


class MambaSpec:
    block_size = SIZE


class Runner:
    """Decodes three requests after their prompts; c comes later."""

    device, max_num_reqs, max_model_len = torch.device("cpu"), 4, 128

    def __init__(self, spec: type = FullAttentionSpec) -> None:
        self.kv_cache_config = SimpleNamespace(
            num_blocks=BLOCKS, kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec())]
        )
        self.req_states = SimpleNamespace(
            req_id_to_index={},
            add_request=lambda req_id, all_token_ids: None,
        )
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
            idx_mapping=torch.from_numpy(index),
            idx_mapping_np=index,
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


def run(fault: str = "") -> tuple[Hooks, Any, list[str]]:
    runner, planted = Runner(), FAULTS[fault]() if fault else None
    hooks = Hooks(runner, {})
    hooks.fault = planted
    for name, prompt in PROMPTS.items():
        runner.req_states.add_request(req_id=name, all_token_ids=prompt)
    for step in range(STEPS):
        names = ["a", "b"] if step < 5 else ["a", "c"] if step == 5 else ["a", "b", "c"]
        runner.prepare_attn(runner.batch(names if step else ["a"]))
        for name in names if step else ["a"]:
            runner.computed[name] = len(runner.tokens[name])
            runner.tokens[name].append(100 + step)
    return hooks, planted, hooks.judge(PROMPTS)


def test_a_right_engine_is_silent() -> None:
    hooks, _, told = run()
    (seen,) = hooks.seen()
    assert not told
    assert seen.wrong == 0
    assert seen.slots == hooks.tables.checked > 1500
    assert not hooks.judge(PROMPTS)  # its launches are judged once


@pytest.mark.parametrize("fault", FAULTS)
def test_each_planted_fault_is_seen(fault: str) -> None:
    hooks, planted, told = run(fault)
    (seen,) = hooks.seen()
    assert planted.struck
    assert seen.wrong > 0
    behind = fault == "a stale graph buffer"  # the host has handed over the right table
    assert bool(told) != behind


def test_an_id_that_is_none_of_the_prompt_is_told() -> None:
    runner = Runner()
    hooks = Hooks(runner, {})
    batch = runner.batch(["c"])
    batch.input_ids[3] = 7
    runner.prepare_attn(batch)
    assert hooks.judge(PROMPTS)[0] == "c computes id 7 at 3 of its prompt"


def test_name_spaces_are_told_apart() -> None:
    runner = Runner()
    hooks = Hooks(runner, {"b": 5})
    for name, prompt in PROMPTS.items():
        runner.req_states.add_request(req_id=name, all_token_ids=prompt)
    runner.prepare_attn(runner.batch(["a"]))
    runner.prepare_attn(runner.batch(["b"]))
    (seen,) = hooks.seen()
    assert seen.wrong == SIZE  # the block of a that b hits
    assert "it holds position 0 of a" in hooks.judge(PROMPTS)[0]


def test_states_are_not_watched() -> None:
    with pytest.raises(Unsupported, match="layers of MambaSpec are not watched"):
        Hooks(Runner(MambaSpec), {})


def test_without_an_engine_or_a_card_it_is_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    if not vllm_live.not_run():
        pytest.skip("vLLM and a card are here")
    assert vllm_live.main([]) == 3
    said = capsys.readouterr().out
    assert said.startswith("NOT RUN: vllm-live==0.33.0: ")
    assert "vLLM is not installed" in said or "no CUDA device" in said
