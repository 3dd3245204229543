# ruff: noqa: T201 - a plain script: it prints, and calls the engine as it is called
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""LMDeploy 0.18.0: a prompt with an image is computed again and nothing of it is cached.

Its hit would end inside the image, so the blocks after the image's begin are to be computed into
private ones. Making room for them evicts the cached blocks that they stand for; the walk that
enters the prompt into the trie then ends at the first of them.

Needs lmdeploy alone, no GPU: python script.py
"""

import sys
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1]))
from lmdeploy_plain import image, make_scheduler

BLOCK = 64
scheduler = make_scheduler(block_size=BLOCK, blocks=20)


def serve(session: int, question: int, length: int) -> int:
    """An image of 560 tokens and a question about it; returns the hit in tokens."""
    tokens = np.arange(length)
    tokens[600:] += question * 100_000
    sequence = scheduler.add_session(session).add_sequence(tokens, multimodals=image(40, 600))
    assert scheduler.schedule(is_prefill=True).running == [sequence]
    hit = int(sequence.num_history_ids)
    scheduler.end_session(session)
    return hit


def kept() -> int:
    """Blocks that stay cached while no request runs."""
    return 20 - scheduler.block_manager.get_num_free_gpu_blocks()


serve(1, question=1, length=640)
print("question 1 leaves", kept(), "blocks")
serve(2, question=2, length=896)
print("question 2, of 14 blocks, leaves", kept())
hit = serve(3, question=2, length=1000)
print("what follows on question 2 begins with its 896 tokens and hits", hit)
assert hit == 0
