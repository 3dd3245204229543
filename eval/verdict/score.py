"""Figures of one pass of one configuration: accuracy with its interval, and its context."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from statistics import median

import msgspec

from kvproof.eval.benchmark.data import DIFFICULTIES, DOMAINS, LENGTHS
from kvproof.eval.run.records import Phase, SampleRecord, most_at_once
from kvproof.eval.verdict.pairs import one_each
from kvproof.harness.statistics import Interval, wilson


class Accuracy(msgspec.Struct, frozen=True):
    """Right answers of all; invalid and missing ones are wrong, never left out."""

    right: int
    total: int

    @property
    def share(self) -> float:
        """0 to 1; 0 for nothing."""
        return self.right / self.total if self.total else 0.0

    @property
    def interval(self) -> Interval:
        """Wilson's, 95 %."""
        return wilson(self.right, self.total)


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """One pass of one configuration.

    Accuracy counts every sample once, by its most frequent answer; all else counts all repeats.
    """

    configuration: str
    phase: Phase
    overall: Accuracy
    groups: dict[str, Accuracy]
    """Accuracy by length, difficulty and domain, in this order."""
    invalid: int
    """Answered, but without a match of the official rules."""
    errors: dict[str, int]
    """Outcome -> samples without an answer."""
    retried: int
    cut: int
    cached: float | None
    """Mean share of prompt tokens that came from the cache; None if never reported."""
    at_once: int
    """Requests that ran at the same time, at most."""
    hits: int
    reported: int
    """Samples whose cached tokens are known."""
    first_token: float | None
    """Median seconds."""
    seconds: float | None
    """Median seconds of whole answers."""
    prompt_rate: float | None
    """Prompt tokens per second."""
    reasons: dict[str, int]
    """Finish reason -> samples."""
    problems: int
    """Impossible token counts."""


def score(samples: Sequence[SampleRecord], *, min_cached: float, concurrency: int) -> Score:
    """Score the samples of one configuration and pass; at least one."""
    once = list(one_each(samples).values())
    shares = [share for each in samples if (share := each.cached_share) is not None]
    answered = [each for each in samples if each.outcome == "answered"]
    first = [each.first_token for each in answered if each.first_token is not None]
    return Score(
        configuration=samples[0].configuration,
        phase=samples[0].phase,
        overall=accuracy(once),
        groups=_groups(once),
        invalid=sum(each.answer is None for each in answered),
        errors=dict(Counter(s.outcome for s in samples if s.outcome != "answered")),
        retried=sum(each.tries > 1 for each in samples),
        cut=sum(each.cut for each in samples),
        cached=sum(shares) / len(shares) if shares else None,
        at_once=most_at_once(samples),
        hits=sum(share >= min_cached for share in shares),
        reported=len(shares),
        first_token=median(first) if first else None,
        seconds=median(each.seconds for each in answered) if answered else None,
        prompt_rate=_rate(answered, concurrency),
        reasons=dict(Counter(each.finish_reason or "none" for each in answered)),
        problems=sum(bool(each.usage.problem) for each in samples),
    )


def accuracy(samples: Iterable[SampleRecord]) -> Accuracy:
    """Count right answers."""
    counted = [each.correct for each in samples]
    return Accuracy(sum(counted), len(counted))


def _groups(samples: Sequence[SampleRecord]) -> dict[str, Accuracy]:
    of: tuple[tuple[Iterable[str], Callable[[SampleRecord], str]], ...] = (
        (LENGTHS, lambda each: each.length),
        (DIFFICULTIES, lambda each: each.difficulty),
        (dict.fromkeys([*DOMAINS, *(s.domain for s in samples)]), lambda each: each.domain),
    )
    found = {
        name: accuracy(s for s in samples if field(s) == name)
        for names, field in of
        for name in names
    }
    return {name: each for name, each in found.items() if each.total}


def _rate(answered: Sequence[SampleRecord], concurrency: int) -> float | None:
    """Tokens of all prompts divided by the time of their concurrent requests."""
    tokens = sum(each.usage.prompt_tokens or 0 for each in answered)
    seconds = sum(each.seconds for each in answered) / concurrency
    return tokens / seconds if tokens and seconds else None
