"""Lies of a reference: one answer of one verb is wrong, so that one property fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any, NamedTuple

from kvproof.harness.adapters.reference.target import ReferenceTarget, make_target
from kvproof.harness.contract import operations as ops
from kvproof.harness.contract.profile import EvictionOrder
from kvproof.harness.contract.target import Request, Target, TargetConfig

ONE = TargetConfig(num_blocks=12, block_size=2)
A = Request("a", (1, 2, 3, 4, 5, 6, 7))
TWIN = replace(A, id="b")
FORK = Request("b", (1, 2, 3, 4, 9, 9, 9))
OTHER = Request("b", (9,) * 7)


def whole(request, *, routed=True):
    """Compute a request in one step."""
    return (ops.Admit(request), ops.Complete(routed=routed), ops.Finish(request.id))


class Lie(NamedTuple):
    """Call `nth` (from 0; -1: every one) of `verb` answers `change(answer)`."""

    config: TargetConfig
    history: tuple[ops.Operation, ...]
    verb: str
    nth: int
    change: Callable[[Any], object]
    story: Callable[[Any], object] | None = None
    """Change of the last inspection, so that its counts agree with the lie."""
    order: EvictionOrder = "lru_in_all_groups"
    """The declared order of eviction."""


def hit(tokens):
    return lambda answer: replace(answer, hit=tokens, start=tokens)


def tables(*groups):
    """Put these blocks into the groups; None leaves a group as it is."""

    def change(answer):
        reported = zip(groups, answer.blocks, strict=True)
        blocks = tuple(own if ids is None else ids for ids, own in reported)
        return replace(answer, blocks=blocks, tables=blocks)

    return change


def another(answer):
    """Hit the first blocks of the request before."""
    return tables((1, 2, *answer.blocks[0][2:]))(hit(4)(answer))


def subject(lie: Lie, config: TargetConfig) -> ReferenceTarget:
    """Return a reference that lies once, or always; a lie about nothing new comes last."""
    target = make_target(config)
    policy = replace(target.profile.policy, eviction_order=lie.order)
    target.profile = replace(target.profile, policy=policy)
    last = sum(1 for operation in lie.history if not isinstance(operation, ops.Lookup))
    _change(target, lie.verb, lie.change, lambda at: at == lie.nth or (lie.nth < 0 and at > last))
    if lie.story:
        _change(target, "inspect", lie.story, lambda at: at == len(lie.history))
    return target


def _change(
    target: Target, verb: str, change: Callable[[Any], object], when: Callable[[int], bool]
) -> None:
    honest, calls = getattr(target, verb), count()

    def answer(*arguments: Any, **keywords: Any) -> Any:
        reported = honest(*arguments, **keywords)
        return change(reported) if when(next(calls)) else reported

    setattr(target, verb, answer)
