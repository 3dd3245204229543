# ruff: noqa: T201 - a plain script: it prints, and calls the engine as it is called
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""LMDeploy 0.18.0: a prompt that does not fit empties the prefix cache on every turn that it waits.

Needs lmdeploy alone, no GPU: python script.py
"""

import sys
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1]))
from lmdeploy_plain import make_scheduler

BLOCK = 64
scheduler = make_scheduler(block_size=BLOCK, blocks=20)


def arrive(session: int, first: int, blocks: int):
    """A request of so many blocks."""
    tokens = np.arange(first, first + blocks * BLOCK)
    return scheduler.add_session(session).add_sequence(tokens)


system_prompt = arrive(1, 0, 8)
scheduler.schedule(is_prefill=True)
scheduler.end_session(1)
running = arrive(2, 10_000, 10)
scheduler.activate_seqs(scheduler.schedule(is_prefill=True).running)
free = scheduler.block_manager.get_num_free_gpu_blocks()
print("cached before:", 20 - free - running.num_blocks, "blocks")

waiting = arrive(3, 20_000, 12)
assert scheduler.schedule(is_prefill=True).running == [], "it does not fit beside the running one"
print("free after a turn in which nothing was admitted:",
      scheduler.block_manager.get_num_free_gpu_blocks(), "of 20")  # fmt: skip

scheduler.end_session(3)
again = arrive(4, 0, 8)
scheduler.schedule(is_prefill=True)
print("the system prompt hits", again.num_history_ids, "tokens; it was cached with", 8 * BLOCK)
assert again.num_history_ids == 0
