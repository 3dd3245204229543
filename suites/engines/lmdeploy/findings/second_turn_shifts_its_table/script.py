# ruff: noqa: T201 - a plain script: it prints, and calls the engine as it is called
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""LMDeploy 0.18.0: the second turn of a session hits blocks and puts them one place too far.

Its first turn ends inside a block. The blocks of another session with the same tokens are appended
after that block, although they begin with the tokens that are in it.

With recurrent states, restoring such a hit overwrites a block of the trie before anything is
computed.

Needs lmdeploy alone, no GPU: python script.py
"""

import sys
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1]))
from lmdeploy_plain import UpdateTokenMode, make_scheduler, prefill

BLOCK = 64
scheduler = make_scheduler(block_size=BLOCK, blocks=20)
QUESTION, ANSWER, FOLLOW_UP = np.arange(100), np.array([7]), np.arange(1000, 1100)


def two_turns(session: int):
    """A question, an answer of one token, and the next question, as Engine._add_message adds it."""
    sequence = scheduler.add_session(session).add_sequence(QUESTION)
    scheduler.activate_seqs(scheduler.schedule(is_prefill=True).running)
    sequence.update_token_ids(ANSWER, mode=UpdateTokenMode.PREFILL)
    sequence.state.finish()
    held = scheduler.get_block_tables([sequence])[0].tolist()
    sequence.update_token_ids(FOLLOW_UP, mode=UpdateTokenMode.INPUTS)
    sequence.state.activate()
    scheduler.activate_seqs(scheduler.schedule(is_prefill=True).running)
    table = scheduler.get_block_tables([sequence])[0].tolist()
    print(f"session {session} held blocks {held} after its first turn, now {table};",
          f"computed from token {sequence.num_history_ids} of {sequence.num_all_ids}")  # fmt: skip
    return table


first, second = two_turns(1), two_turns(2)
place = second.index(first[1])
print(f"block {first[1]} holds tokens 64 to 127 and is entry {place} of the second session's",
      f"table, which is read as tokens {place * BLOCK} to {place * BLOCK + BLOCK - 1}")  # fmt: skip
assert place == 2

# The same with recurrent states, in blocks of 4: another prompt of 10 tokens is in the cache.
scheduler = make_scheduler(block_size=4, blocks=20, checkpoints=4)
other, _, _ = prefill(scheduler, 1, range(10))
cached = scheduler.get_block_tables([other])[0].tolist()
scheduler.end_session(1)
sequence, _, _ = prefill(scheduler, 2, range(6))
sequence.set_step(6)
sequence.state.finish()
sequence.update_token_ids(np.arange(6, 20), mode=UpdateTokenMode.INPUTS)
sequence.state.activate()
assert scheduler.schedule(is_prefill=True).running == [sequence]
plan = scheduler.block_trie.state_checkpoints.prepare_restore_batch([sequence])
((frozen, target),) = plan.kv_block_pairs
print(f"the cache has blocks {cached[:2]} for tokens 0 to 7; restoring the second turn copies",
      f"block {frozen}, tokens 8 and 9, over block {target}")  # fmt: skip
assert target in cached[:2]
