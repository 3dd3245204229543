"""A live engine without weights, to be recorded: vLLM's own loop with a worker that is ours.

`python live_loop.py [CONNECTOR ...]`, in the environment of vLLM, below `kvproof record`: a fixed
history, or one beside each connector.
"""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from typing import Any

from kvproof.harness.adapters.vllm_engine import plugin
from kvproof.harness.adapters.vllm_engine.jobs import open_driver
from kvproof.harness.contract.whole_engine import EngineConfig, GroupKind

ENGINE = EngineConfig(
    blocks=14, groups=(GroupKind(layers=1),), asynchronous=True, token_budget=48, max_requests=3,
    max_length=192,
)  # fmt: skip
HISTORY = [
    ("submit", {"id": "a", "family": 0, "shared": 48, "own": 1, "answers": 30}),
    ("step", {"count": 4}),
    ("submit", {"id": "b", "family": 0, "shared": 48, "own": 5, "answers": 9, "salt": "s"}),
    ("submit", {"id": "c", "family": 0, "shared": 32, "own": 15, "answers": 50}),
    ("step", {"count": 9}),
    ("submit", {"id": "d", "after": "b", "own": 6, "answers": 9}),
    ("abort", {"request": "c"}),
    ("drain", {}),
    ("reset", {}),
    ("submit", {"id": "e", "family": 0, "shared": 48, "own": 2, "answers": 4}),
    ("submit", {"id": "f", "family": 0, "shared": 48, "own": 3, "answers": 4, "salt": "s"}),
    ("drain", {}),
]


def drawn(seed: int) -> list[tuple[str, dict[str, Any]]]:
    """Requests of a few families, aborts and resets, while copies take their time."""
    draw, calls = random.Random(seed), []
    for number in range(60):
        request: dict[str, Any] = {"id": f"r{number}", "family": draw.randrange(4)}
        request |= {"shared": draw.choice((16, 32, 48, 64)), "own": draw.randrange(1, 9)}
        request |= {"answers": draw.choice((1, 4, 20)), "salt": draw.choice(("", "s"))}
        calls.append(("submit", request))
        calls.append(("step", {"count": draw.choice((1, 2, 4)), "delay": draw.choice((0, 1, 3))}))
        if draw.random() < 0.1:
            calls.append(("abort", {"number": 1}))
        if draw.random() < 0.05:
            calls += [("drain", {}), ("reset", {})]
    return [*calls, ("drain", {})]


def run(engine: EngineConfig, history: list[tuple[str, dict[str, Any]]]) -> None:
    """Run a history, which a right engine passes."""
    driver = open_driver(engine)
    for verb, keywords in history:
        driver.apply(verb, keywords)
    assert driver.findings.wrong is None, driver.findings.wrong


if __name__ == "__main__":
    plugin.install()
    for connector in sys.argv[1:]:
        beside = replace(ENGINE, blocks=20, asynchronous=False, connector=connector, events=False)
        run(beside, drawn(3))
    if not sys.argv[1:]:
        run(ENGINE, HISTORY)
