# ruff: noqa: T201 - a plain script: it prints, and calls the engine as it is called
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""LMDeploy 0.18.0: a session whose next turn has to wait loses the blocks of its earlier turns.

The next turn does not fit together with another session. The refused admission resets the sequence
as if it had never been computed, and frees its blocks, the partial last one with it.

Needs lmdeploy alone, no GPU: python script.py
"""

import sys
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1]))
from lmdeploy_plain import UpdateTokenMode, make_scheduler

BLOCK = 64
scheduler = make_scheduler(block_size=BLOCK, blocks=8)


def begin(session, tokens):
    """Compute the first turn of a session."""
    sequence = scheduler.add_session(session).add_sequence(np.array(tokens))
    scheduler.activate_seqs(scheduler.schedule(is_prefill=True).running)
    return sequence


other = begin(1, range(5000, 5000 + 4 * BLOCK))
sequence = begin(2, range(100))
sequence.update_token_ids(np.array([7]), mode=UpdateTokenMode.PREFILL)
sequence.state.finish()
held, computed = sequence.num_blocks, sequence.num_history_ids
sequence.update_token_ids(np.arange(1000, 1000 + 4 * BLOCK), mode=UpdateTokenMode.INPUTS)
sequence.state.activate()
assert scheduler.schedule(is_prefill=True).running == []
print(f"the session held {held} blocks with {computed} computed tokens; its next turn waits,",
      f"and it holds {sequence.num_blocks} with {sequence.num_history_ids}")  # fmt: skip
assert held > 0
assert sequence.num_blocks == 0
