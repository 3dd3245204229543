"""LMDeploy's own loop with its engine: a history is the same in every run, and nothing is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvproof.harness.isolation import environments
from kvproof.harness.isolation.environments import EngineVersion
from kvproof.harness.isolation.registry import open_handle

ENGINE = EngineVersion("lmdeploy-engine", "0.18.0")
JOB = "kvproof.harness.adapters.lmdeploy_engine.jobs:engine"
CONFIG = {
    "blocks": 14,
    "block_size": 16,
    "groups": [{"layers": 1}],
    "token_budget": 32,
    "max_requests": 4,
    "max_length": 190,
    "caching": True,
    "events": False,
}


def _submit(name: str, shared: int, answers: int) -> tuple[str, dict[str, Any]]:
    return "submit", {"id": name, "family": 0, "shared": shared, "own": 2, "answers": answers}


HISTORY: list[tuple[str, dict[str, Any]]] = [
    *(_submit(f"r{number}", 40 + 16 * number, 90) for number in range(4)),
    ("step", {"count": 9, "lag": 1}),
    ("abort", {"number": 1}),
    ("step", {"count": 9, "lag": 2}),
    _submit("r4", 100, 60),
    ("drain", {}),
]


@pytest.mark.nightly(reason="others of its kind run before each merge")
@pytest.mark.slow(reason="runs an installed engine")
def test_a_history_is_the_same_in_every_run(tmp_path: Path) -> None:
    if environments.state(ENGINE) != "installed":
        pytest.skip(f"{ENGINE} is not installed: kvproof targets install {ENGINE}")
    calls = [
        ("open", {"config": CONFIG}),
        *(("apply", {"verb": verb, "keywords": given}) for verb, given in HISTORY),
        ("timeline", {}),
    ]
    with open_handle(str(ENGINE), log_directory=tmp_path) as handle:
        first, second = (
            handle.run_job(JOB, {"calls": calls}, timeout=300)["answers"] for _ in range(2)
        )
    assert first == second
    seen = first[1:-1]
    assert not any(each["wrong"] for each in seen)
    situations = {name for each in seen for name in each["situations"]}
    assert {
        "a prompt is computed in chunks",
        "a request hits",
        "a request is preempted",
        "the engine comes to rest",
    } <= situations
