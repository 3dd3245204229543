# ruff: noqa: T201 - a plain script: it prints, and calls the engine as it is called
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""LMDeploy 0.18.0: a request that was preempted writes its next tokens over a block of others.

Two requests have the same prompt and get the same answers. The slower one is preempted for a
moment.

Needs lmdeploy alone, no GPU: python script.py
"""

import sys
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1]))
from lmdeploy_plain import UpdateTokenMode, make_scheduler

BLOCK = 16
ADVANCE = 16  # prefill_interval, the engine's default: so many tokens are allocated in advance
PROMPT, ANSWERS = np.arange(60), np.arange(1000, 1040)
scheduler = make_scheduler(block_size=BLOCK, blocks=15)


def arrive(session: int, tokens):
    """Admit a prompt and compute it, as the engine's loop does."""
    seq = scheduler.add_session(session).add_sequence(tokens)
    assert scheduler.schedule(is_prefill=True, prealloc_size=ADVANCE).running == [seq]
    scheduler.activate_seqs([seq])
    seq.update_token_ids(ANSWERS[:1], mode=UpdateTokenMode.PREFILL)
    return seq


def decode(seq, answers: int) -> None:
    """Compute tokens one by one."""
    for token in ANSWERS[1:answers]:
        assert scheduler.schedule_running([seq], 1, ADVANCE) == [True]
        seq.update_token_ids(np.array([token]), mode=UpdateTokenMode.DECODE)


def table(seq) -> list[int]:
    """Return the blocks of a sequence, as its next forward gets them."""
    return scheduler.get_block_tables([seq])[0].tolist()


faster, slower = arrive(1, PROMPT), arrive(2, PROMPT)
decode(faster, 40)
decode(slower, 20)
before = table(slower)
print(f"the faster request has blocks {table(faster)}, the slower one {before} for 80 tokens")

free = scheduler.block_manager.get_num_free_gpu_blocks()
other = arrive(3, np.arange(5000, 5000 + (free - 1) * BLOCK))  # the pool is full
assert scheduler.schedule_running([faster, slower], 1, ADVANCE) == [True, False]
print("the pool is full: the slower request is", slower.status.name)
scheduler.end_session(3)
assert scheduler.schedule(is_prefill=True, prealloc_size=ADVANCE).running == [slower]

again = table(slower)
print(f"it goes on with blocks {again}")
(shared,) = {*again[5:]} & {*table(faster)}
place = table(faster).index(shared)
first = place * BLOCK
print(f"block {shared} holds tokens {first} to {first + BLOCK - 1} of the faster request,")
print("and gets tokens 80 to 95 of the slower one")
assert (place, again.index(shared)) == (3, 5)
