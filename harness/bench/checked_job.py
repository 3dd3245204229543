"""A workload under the shadow memory, run where the engine lives: soundness at full size."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from kvproof.harness.bench.workloads import Workload, load_workload
from kvproof.harness.contract import operations as ops
from kvproof.harness.contract.target import Refused, Request, TargetConfig
from kvproof.harness.oracle.violation import INVARIANT, Violation, fail
from kvproof.harness.session import Session


def run(arguments: dict[str, Any]) -> dict[str, Any]:
    """Serve the first `max_tokens` tokens of `workload`, one request after the other.

    Arguments: factory, workload, block_size, num_blocks, max_tokens; optional `explained`, a
    factory of the same target with explanations (`explain.ExplainedTarget`). Every hit is compared
    with the shadow memory and with the longest reusable prefix; counters are not inspected, because
    that costs time in proportion to the pool.
    """
    config = TargetConfig(num_blocks=arguments["num_blocks"], block_size=arguments["block_size"])
    workload = load_workload(arguments["workload"])
    explained = _function(arguments["explained"])(config) if arguments.get("explained") else None
    target = explained.target if explained else _function(arguments["factory"])(config)
    session = Session(target, config, audited=False)
    try:
        served = _serve_all(session, workload, arguments["max_tokens"])
        return {**served, "explained": explained.events() if explained else []}
    finally:
        target.close()


def _serve_all(session: Session, workload: Workload, most: int) -> dict[str, Any]:
    """Serve requests until `most` tokens are served, or one of them violates a property."""
    requests = tokens = 0
    verdict, message = "pass", ""
    for index in range(workload.requests):
        if tokens >= most:
            break
        prompt = workload.prompt(index)
        try:
            _serve(session, f"r{index}", tuple(prompt.tolist()))
        except Violation as violation:
            verdict, message = "fail", f"request {index}: {violation}"
            break
        requests, tokens = requests + 1, tokens + len(prompt)
    return {
        "requests": requests,
        "tokens": tokens,
        "slots_compared": session.state.shadow.compared,
        "verdict": verdict,
        "message": message,
    }


def _function(path: str) -> Callable[[TargetConfig], Any]:
    module, _, name = path.partition(":")
    function: Callable[[TargetConfig], Any] = getattr(importlib.import_module(module), name)
    return function


def _serve(session: Session, name: str, tokens: tuple[int, ...]) -> None:
    answer = session.apply(ops.Admit(Request(name, tokens)))
    if isinstance(answer, Refused):
        session.checks["what_fits_is_admitted"] += 1
        fail(
            session.state,
            "what_fits_is_admitted",
            INVARIANT,
            f"{name} was refused by an idle pool: {answer}",
        )
    while session.steps:
        session.apply(ops.Complete())
    session.apply(ops.Finish(name))
    session.forget_history()
