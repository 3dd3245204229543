"""A live engine without weights, to be recorded: vLLM's own loop with a worker that is ours.

`python live_loop.py`, in the environment of vLLM, below `kvproof record`.
"""

from __future__ import annotations

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

if __name__ == "__main__":
    plugin.install()
    driver = open_driver(ENGINE)
    for verb, keywords in HISTORY:
        driver.apply(verb, keywords)
    assert driver.findings.wrong is None, driver.findings.wrong
