"""One step of a running engine in a line, for the tests of its adapter."""

from __future__ import annotations

from typing import Any

from kvproof.harness.contract.target import Refused, Request, Scheduled, Target
from kvproof.harness.isolation.handles import Handle
from kvproof.suites.tests.patience import LONG

DRIFT = "kvproof.suites.tests.adapters.adapter_jobs:drift"
SIZE = 4
"""Tokens of a block."""


def ran(target: Target, answer: Scheduled | Refused) -> Scheduled:
    """Complete a step, with a row for each position where a block without one is never hit."""
    assert isinstance(answer, Scheduled), answer
    rows = tuple(range(answer.start, answer.stop)) if target.profile.experts else ()
    target.complete(answer.step, None, rows)
    return answer


def admit(target: Target, request: Request, compute: int | None = None) -> Scheduled:
    return ran(target, target.admit(request, compute))


def extend(target: Target, name: str, *tokens: int, compute: int | None = None) -> Scheduled:
    return ran(target, target.extend(name, tokens, compute))


def cycle(
    handle: Handle, engine: str, *prompts: list[int], variant: str = "", **config: object
) -> dict[str, Any]:
    """Serve prompts by the native cycle of an engine."""
    arguments = {"engine": engine, "config": {"block_size": SIZE, **config}}
    arguments |= {"variant": variant, "prompts": prompts}
    job = "kvproof.suites.tests.adapters.worker_fakes:engine_cycle"
    return handle.run_job(job, arguments, timeout=LONG)


def serve(target: Target, request: Request) -> int:
    """Admit, finish, and return the hit."""
    hit = admit(target, request).hit
    target.finish(request.id)
    return hit


def prompt(name: str, length: int, **rest: Any) -> Request:
    return Request(name, tuple(range(100, 100 + length)), **rest)
