"""Prompts of the lengths that users have: how deep hits reach, and whether they are right there."""

from __future__ import annotations

import re

from kvproof.harness.errors import UsageError
from kvproof.suites.probe.asker import Asker, Question
from kvproof.suites.probe.compare import Pair
from kvproof.suites.probe.content import Turn, Words, fresh, other
from kvproof.suites.probe.trials import INSIDE, Trial, TrialContext

USUAL = (1_000, 4_000)
"""Depths without the option, as far as the server takes them."""
MOST = 10_000_000
_ANSWER_ROOM = 64
"""Tokens left for a template and an answer."""
_SAMPLE = 100
"""Words of a prompt from which tokens per word are estimated."""


def read_depths(text: str) -> tuple[int, ...]:
    """Read `1k,8k,32000`: tokens, k is a thousand. Raises UsageError."""
    found = []
    for part in filter(None, (each.strip() for each in text.split(","))):
        match = re.fullmatch(r"(\d{1,8})(k?)", part.lower())
        depth = int(match[1]) * (1000 if match[2] else 1) if match else 0
        if not 100 <= depth <= MOST:
            raise UsageError(
                f"--depths {part[:40]!r} is no number of tokens from 100 to {MOST:,}",
                "for example --depths 1k,8k,32k,128k",
            )
        found.append(depth)
    if text and not found:
        raise UsageError(f"--depths {text[:40]!r} names no depth", "for example --depths 1k,8k")
    return tuple(dict.fromkeys(found))


def reached(depth: int) -> str:
    """Name the situation that a hit is that deep."""
    return f"hit in a prompt of {depth:,} tokens"


def fitting(asker: Asker, depths: tuple[int, ...]) -> tuple[int, ...]:
    """Return the depths that the server takes."""
    longest = asker.facts.longest
    return tuple(each for each in depths if not longest or each + _ANSWER_ROOM <= longest)


def words(asker: Asker, depth: int) -> int:
    """Return how many words make so many tokens, by the prompts that were counted so far."""
    if asker.facts.form == "ids":
        return depth
    counted = [each for each in asker.seen if each.question.words >= _SAMPLE and each.answer.prompt]
    if not counted:
        return depth
    longest = max(counted, key=lambda each: each.question.words)
    return max(1, int(depth * longest.question.words / longest.answer.prompt))


def deep(context: TrialContext, depth: int) -> Trial:
    """Send a long prompt twice, then one that shares its first half."""
    trial, asker = Trial(), context.asker
    length = words(asker, depth)
    base: Words = fresh(length)
    first = Question((Turn(base),), context.salt(), unshared=length)
    computed = asker.ask(first)
    again = asker.ask(first._replace(unshared=None, again=True))
    trial.saw(reached(depth), happened=4 * (again.cached or 0) >= 3 * again.prompt > 0)
    trial.pairs.append(Pair(f"{depth:,} tokens again", computed, again))
    if context.anew:
        half = base[: length // 2]
        question = first._replace(turns=(Turn(half + other(base[length // 2])),), unshared=4)
        reused = asker.ask(question)
        trial.saw(INSIDE, happened=asker.found(reused))
        plain = context.plain(question)
        trial.pairs.append(Pair(f"half of {depth:,} tokens", plain, reused, "shared"))
    return trial
