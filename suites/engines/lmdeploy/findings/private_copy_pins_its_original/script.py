# ruff: noqa: T201 - a plain script: it prints, and calls the engine as it is called
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""LMDeploy 0.18.0: blocks that no request holds stay while a request runs on copies of them.

Needs lmdeploy alone, no GPU: python script.py
"""

import sys
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1]))
from lmdeploy_plain import image, make_scheduler

BLOCK = 64
scheduler = make_scheduler(block_size=BLOCK, blocks=20)


def arrive(session: int, blocks: int, question: int):
    """An image of 560 tokens and a question about it; 0: only text."""
    tokens = np.arange(blocks * BLOCK) + (0 if question else 500_000)
    tokens[600:] += question * 100_000
    media = image(40, 600) if question else None
    return scheduler.add_session(session).add_sequence(tokens, multimodals=media)


arrive(1, blocks=10, question=1)
scheduler.schedule(is_prefill=True)
scheduler.end_session(1)
running = arrive(2, blocks=10, question=2)
scheduler.activate_seqs(scheduler.schedule(is_prefill=True).running)
assert running.num_blocks == 10
waiting = arrive(3, blocks=9, question=0)
admitted = scheduler.schedule(is_prefill=True).running == [waiting]
print("10 of 20 blocks are held; a request of 9 blocks runs:", admitted)
assert not admitted
