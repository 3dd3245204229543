"""Compares two answers to the same prompt with the engine's own noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from kvproof.suites.probe.answers import Answer, Token

ALPHA = 0.001
"""Probability that noise alone fails a check, if it is as frequent without reuse."""
NEAR_TIES = 0.2
"""Share of answers that may flip at a near tie, without log-probabilities."""


Kind: TypeAlias = Literal["repeated", "shared", "conversation", "image", "cancelled"]
"""The known part of a prompt: all, its beginning, earlier turns, an image, a cancelled request."""


class Pair(NamedTuple):
    """The same prompt answered without and with the cache."""

    label: str
    """Name of the case. Two answers to one prompt never share it, since they flip together."""
    plain: Answer
    reused: Answer
    kind: Kind = "repeated"
    anew: tuple[Answer, ...] = ()
    """The same prompt computed again, in an order that was drawn together with the hit's."""


def difference(pair: Pair, *, allowed: float) -> str:
    """Describe the first difference above `allowed` in log-probability; empty if there is none."""
    plain, reused = pair.plain, pair.reused
    if not (plain.tokens and reused.tokens):
        if (plain.text, plain.finish) == (reused.text, reused.finish):
            return ""
        return f"answered {reused.text!r} instead of {plain.text!r}"
    for place, (one, two) in enumerate(zip(plain.tokens, reused.tokens, strict=False)):
        if one.text != two.text:
            gap = max(one.logprob - one.most(two.text), two.logprob - two.most(one.text))
            return _describe(place, one, two, gap) if gap > 2 * allowed else ""
        if abs(one.logprob - two.logprob) > allowed:
            return _describe(place, one, two, abs(one.logprob - two.logprob))
    return _ends(plain, reused, allowed)


def _describe(place: int, one: Token, two: Token, gap: float) -> str:
    far = "no near tie" if math.isinf(gap) else f"{gap:.3g} apart"
    return (
        f"token {place} is {two.text!r} ({two.logprob:.4f}) instead of "
        f"{one.text!r} ({one.logprob:.4f}): {far}"
    )


def _ends(plain: Answer, reused: Answer, allowed: float) -> str:
    """One of two equal beginnings ends earlier: bound by the log-probability left for an end."""
    short, long = sorted((plain.tokens, reused.tokens), key=len)
    if len(short) == len(long):
        return "" if plain.text == reused.text else f"{reused.text!r} instead of {plain.text!r}"
    following = long[len(short)]
    rest = 1.0 - math.exp(min(0.0, following.logprob))
    end = math.log(rest) if rest > 1e-12 else -math.inf
    if following.logprob - end <= 2 * allowed:
        return ""
    return f"ended after {len(reused.tokens)} tokens instead of {len(plain.tokens)}"


def spread(pairs: Sequence[Pair]) -> float:
    """Return the largest difference in log-probability of a token in both answers."""
    found = [0.0]
    for pair in pairs:
        for one, two in zip(pair.plain.tokens, pair.reused.tokens, strict=False):
            if one.text != two.text:
                break
            found.append(abs(one.logprob - two.logprob))
    return max(found)
