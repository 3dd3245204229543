# ruff: noqa: T201 - a plain script: it prints, and calls the engine as it is called
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""LMDeploy 0.18.0: a conversation with a hybrid model never hits more than its first prompt.

That prompt ends inside a block, where its state is saved with a copy of the block. The next turn
hits it, and from then on nothing is saved: the blocks that follow a hit inside a block do not
enter the trie when they are scheduled, and without the last of them no state can be saved.

Needs lmdeploy alone, no GPU: python script.py
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
from lmdeploy_plain import decode, make_scheduler, prefill

BLOCK = 64
scheduler = make_scheduler(block_size=BLOCK, blocks=1000, checkpoints=50)

prompt, hits, ends = list(range(1000)), [], []
for turn in range(6):
    sequence, hit, saved = prefill(scheduler, turn, prompt)
    state = "saved" if saved else "not saved"
    print(f"turn {turn}: {len(prompt)} tokens, hit {hit}, state {state}")
    hits.append(hit)
    ends.append(saved)
    answer = [100_000 * (turn + 1) + i for i in range(300)]
    decode(scheduler, sequence, answer)
    scheduler.end_session(turn)
    question = [100_000 * (turn + 1) + i for i in range(300, 500)]
    prompt = prompt + answer + question

_, _, saved = prefill(make_scheduler(block_size=BLOCK, blocks=1000, checkpoints=50), 0, prompt)
print("the last prompt in an empty cache: state", "saved" if saved else "not saved")
assert hits == [0, 1000, 1000, 1000, 1000, 1000]
assert ends == [True, False, False, False, False, False]
assert saved
