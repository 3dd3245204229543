# ruff: noqa: T201 - a plain script: it prints, and calls the engine as it is called
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""LMDeploy 0.18.0: once its pool is full, a hybrid model hits nothing any more.

The first prompt that finds the pool full evicts the blocks of all states that are kept inside a
block, before any other. Eviction makes room for exactly the blocks of a prompt; the copy that its
own state needs is taken from the free blocks afterwards, where there is none.

Needs lmdeploy alone, no GPU: python script.py
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
from lmdeploy_plain import make_scheduler, prefill

scheduler = make_scheduler(block_size=64, blocks=60, checkpoints=50)
sessions = iter(range(100))


def serve(tokens):
    """One request alone; returns its hit and whether its state was saved."""
    session = next(sessions)
    _, hit, saved = prefill(scheduler, session, tokens)
    scheduler.end_session(session)
    return hit, saved


hits = []
for number in range(12):
    prompt = [1000 * number + i for i in range(600)]
    _, saved = serve(prompt)
    hit, _ = serve([*prompt, 1, 2, 3])
    hits.append(hit)
    print(f"prompt {number} of 600 tokens: state {'saved' if saved else 'not saved'}; again: {hit}")

assert hits == [600] * 5 + [0] * 7

# Where rows are short too, a state at a block border is evicted for one that is not saved then.
scheduler = make_scheduler(block_size=64, blocks=11, checkpoints=1)
prompts = [[1000 * number + i for i in range(64)] for number in range(9)]
assert all(saved for _, saved in map(serve, prompts))
_, saved = serve(range(50_000, 50_100))
rows = scheduler.state_manager.get_num_free()
print("states of 9 prompts; a tenth prompt is", "saved" if saved else "not saved")
print("rows that are free afterwards:", rows, "of which it had 1")
hit, _ = serve([*prompts[0], 1])
print("the first of the 9 prompts hits", hit, "of 64")
assert (saved, rows, hit) == (False, 2, 0)
