"""One step of a running engine in a line, for the tests of its adapter."""

from __future__ import annotations

from typing import Any

from kvproof.harness.contract.target import Request, Scheduled, Target


def admit(target: Target, request: Request, compute: int | None = None) -> Scheduled:
    answer = target.admit(request, compute)
    assert isinstance(answer, Scheduled), answer
    target.complete(answer.step)
    return answer


def extend(target: Target, name: str, *tokens: int, compute: int | None = None) -> Scheduled:
    answer = target.extend(name, tokens, compute)
    assert isinstance(answer, Scheduled), answer
    target.complete(answer.step)
    return answer


def serve(target: Target, request: Request) -> int:
    """Admit, finish, and return the hit."""
    hit = admit(target, request).hit
    target.finish(request.id)
    return hit


def prompt(name: str, length: int, **rest: Any) -> Request:
    return Request(name, tuple(range(100, 100 + length)), **rest)
