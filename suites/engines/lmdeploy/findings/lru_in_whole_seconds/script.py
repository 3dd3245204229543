# ruff: noqa: T201 - a plain script: it prints, and calls the engine as it is called
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""LMDeploy 0.18.0: blocks used within one second are evicted in the order of memory addresses.

Needs lmdeploy alone, no GPU: python script.py
"""

import sys
import time
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1]))
from lmdeploy_plain import make_scheduler

BLOCK = 16


def wrong_victims(pause: float, prompts: int = 16) -> int:
    """How many of the 8 prompts used last are evicted while older ones stay."""
    scheduler = make_scheduler(block_size=BLOCK, blocks=64)

    def serve(session: int, prompt: int) -> int:
        tokens = np.arange(1000 * prompt, 1000 * prompt + BLOCK + 1)
        sequence = scheduler.add_session(session).add_sequence(tokens)
        scheduler.schedule(is_prefill=True)
        hit = sequence.num_history_ids
        scheduler.end_session(session)
        return hit

    for prompt in range(prompts):
        serve(prompt, prompt)
    time.sleep(pause)
    recent = range(0, prompts, 2)
    for prompt in recent:
        assert serve(100 + prompt, prompt) == BLOCK, "it is used again"
    assert scheduler.block_trie.evict(prompts // 2) == prompts // 2
    return sum(serve(200 + prompt, prompt) == 0 for prompt in recent)


while time.perf_counter() % 1 > 0.2:  # begin early in a second
    time.sleep(0.01)
within = wrong_victims(pause=0)
apart = wrong_victims(pause=1.1)
print(f"used again in the same second: {within} of 8 recently used prompts were evicted")
print(f"used again more than a second later: {apart} of 8")
assert within > 0 == apart
