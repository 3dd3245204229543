"""Log-probabilities of a served request against those of a cold engine, bit by bit."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Literal, NamedTuple

Verdict = Literal["pass", "inconclusive", "fail"]


class Answer(NamedTuple):
    """What a request got."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Log-probability or logit of each token, as the engine returned it."""


class Judged(NamedTuple):
    """Verdict of the answers."""

    verdict: Verdict
    sentence: str
    differing: tuple[str, ...] = ()
    """Requests whose answer is another one."""


def difference(served: Answer, cold: Answer) -> str:
    """Return the first difference in words; empty: every bit of the shorter one is equal.

    An aborted request has the beginning of its answer.
    """
    pairs = zip(served.tokens, cold.tokens, served.logprobs, cold.logprobs, strict=False)
    for at, (token, other, value, expected) in enumerate(pairs):
        if token != other:
            return f"token {at} is {token}, the cold engine's {other}"
        if struct.pack("<d", value) != struct.pack("<d", expected):
            return f"log-probability of token {at} is {value!r}, the cold engine's {expected!r}"
    return ""


def judge(
    served: Mapping[str, Answer], cold: Mapping[str, Answer], again: Mapping[str, Answer]
) -> Judged:
    """Judge served answers against a cold engine that answered some requests twice.

    `again`: a second answer of the cold engine, in other company. Where the two differ, recomputing
    does not repeat, and the served answers are not judged.
    """
    unsteady = {name: words for name in again if (words := difference(again[name], cold[name]))}
    if unsteady or not again:
        name, words = next(iter(unsteady.items()), ("", "nothing was recomputed"))
        return Judged("inconclusive", f"a cold engine does not repeat itself: {name} {words}")
    found = {name: words for name in served if (words := difference(served[name], cold[name]))}
    if found:
        name, words = next(iter(found.items()))
        sentence = f"{len(found)} of {len(served)} answers differ: {name}: {words}"
        return Judged("fail", sentence, tuple(found))
    return Judged("pass", f"{len(served)} answers are equal bit by bit, {len(again)} repeat")
