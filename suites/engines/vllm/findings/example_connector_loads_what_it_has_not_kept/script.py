# ruff: noqa: T201 - a plain script: it prints its results
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""vLLM 0.33.0: ExampleConnector promises a load of blocks that it has not kept, and raises.

Needs vllm, no GPU: python script.py
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
from vllm_example_plain import BLOCK, Engine


def load(engine, prompt, blocks):
    """Schedule a prompt with the promised tokens; returns the exception of the load."""
    matched = engine.matched(prompt)
    print("tokens that can be loaded:", matched)
    try:
        engine.run("second", prompt, blocks, external=matched)
    except (FileNotFoundError, RuntimeError) as error:
        print("the load:", type(error).__name__, "" if error.args[1:] else error)
        return type(error)
    raise AssertionError("the load did not fail")


print("the first prompt has two blocks, the second one token more")
engine = Engine()
engine.run("first", list(range(2 * BLOCK)), [1, 2])
assert load(engine, list(range(2 * BLOCK + 1)), [3, 4, 5]) is FileNotFoundError

print("the first prompt has five blocks, two of them in its first step; the second is the same")
engine = Engine()
prompt = list(range(4 * BLOCK + 5))
engine.run("first", prompt, [1, 2])
assert load(engine, prompt, [3, 4, 5, 6, 7]) is RuntimeError
