"""Pairs of answers of two configurations to the same sample, and their flips."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from kvproof.eval.run.config import Configuration, Judge
from kvproof.eval.run.records import Phase, SampleRecord
from kvproof.eval.verdict.evaluated import Verdict
from kvproof.harness.statistics import (
    at_least,
    binomial_tail,
    clopper_pearson,
    mcnemar,
    net_loss_bound,
)

RowPhase = Phase | Literal["hits"]
"""`hits`: the warm and the shared pass together, by sample."""


class Flip(msgspec.Struct, frozen=True, kw_only=True):
    """A sample with different answers of two configurations."""

    id: str
    before: str
    """Letter, invalid, or the error."""
    after: str
    expected: str
    kind: Literal["text", "answer", "lost", "won"]
    """The strongest that applies: only the text, the answer, or whether it is right."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One pass of two configurations."""

    before: str
    after: str
    phase: RowPhase
    control: bool
    """Both are the same configuration."""
    pairs: int
    missing: int = 0
    """Samples, over all repeats, that one side lacks."""
    hits: int = 0
    """Pairs that the bounds count: hits, or all where no hit is expected."""
    right_before: int
    right_after: int
    texts: int
    """Pairs with different texts."""
    answers: int
    """Pairs with different answers: letters, invalid ones and errors."""
    lost: int
    won: int
    p_accuracy: float
    p_flips: float
    """One-sided: more answers, or texts, flip than in the control pair; 1 for the control."""
    flipping: Literal["answers", "texts"] = "answers"
    """Part of a record whose flips p_flips counts."""
    adjusted_accuracy: float = 1.0
    adjusted_flips: float = 1.0
    bound: float = 1.0
    """Upper bound, with 95 % confidence, of the share of right answers lost, less those won."""
    flipped: float = 1.0
    """Upper bound, with 95 % confidence, of the share of texts that flip."""
    beyond: float = 1.0
    """Upper bound, with 95 % confidence, of the same share, less that of the control pair."""
    constant: bool = False
    """The first configuration gives one letter to questions with several right ones."""
    constant_text: bool = False
    """The first configuration gives one text to different prompts."""
    logprob: float | None = None
    """Largest difference of a token's log-probability, over pairs with the same text."""
    verdict: Verdict = "pass"
    reasons: tuple[str, ...] = ()
    flips: tuple[Flip, ...] = ()

    @property
    def title(self) -> str:
        """The pass in a word; `both`: warm and shared together."""
        return "both" if self.phase == "hits" else self.phase


class Sides(NamedTuple):
    """One pass of the first configuration, of another one, and of the control."""

    before: dict[str, SampleRecord]
    after: dict[str, SampleRecord]
    control: dict[str, SampleRecord]


def one_each(samples: Iterable[SampleRecord]) -> dict[str, SampleRecord]:
    """Return one record for each sample, by its identity: its most frequent answer, else the first.

    Repeats of a sample are dependent, so that a test must not count them.
    """
    by: dict[str, list[SampleRecord]] = {}
    for each in sorted(samples, key=lambda sample: sample.repeat):
        by.setdefault(each.id, []).append(each)
    return {identity: _most_frequent(records) for identity, records in by.items()}


def _most_frequent(records: Sequence[SampleRecord]) -> SampleRecord:
    answer = Counter(each.given for each in records).most_common(1)[0][0]
    return next(each for each in records if each.given == answer)


def make_row(sides: Sides, one: Configuration, phase: RowPhase, base: str, judge: Judge) -> Row:
    """Count the flips of one pass, and bound them over the hits among its pairs.

    p is one-sided where a loss is looked for, and two-sided for the control.
    """
    both = [key for key in sides.before if key in sides.after]
    pairs = [(sides.before[key], sides.after[key]) for key in both]
    counted = [key for key in both if not may_hit(one, phase) or _hit(sides.after[key], judge)]
    lost = sum(a.correct and not b.correct for a, b in pairs)
    won = sum(b.correct and not a.correct for a, b in pairs)
    return Row(
        before=base,
        after=one.name,
        phase=phase,
        control=one.control,
        pairs=len(pairs),
        hits=len(counted),
        right_before=sum(a.correct for a, _ in pairs),
        right_after=sum(b.correct for _, b in pairs),
        texts=sum(_texts_differ(a, b) for a, b in pairs),
        answers=sum(_answers_differ(a, b) for a, b in pairs),
        lost=lost,
        won=won,
        p_accuracy=mcnemar(lost, won) if one.control else at_least(lost, lost + won),
        p_flips=1.0,
        **_bounds(sides, counted),
        constant=_constant({a.given for a, _ in pairs}, {a.expected for a, _ in pairs}),
        constant_text=_constant({a.text for a, _ in pairs}, {a.prompt_sha256 for a, _ in pairs}),
        logprob=_logprob(pairs),
        flips=tuple(flip for a, b in pairs if (flip := _flip(a, b))),
    )


def may_hit(one: Configuration, phase: RowPhase) -> bool:
    """Whether the pass is about hits."""
    return one.prefix_cache and not one.control and phase != "cold"


def _hit(sample: SampleRecord, judge: Judge) -> bool:
    return (sample.cached_share or 0.0) >= judge.min_cached


def _bounds(sides: Sides, keys: Sequence[str]) -> dict[str, Any]:
    """Upper bounds over these samples: answers lost, texts changed, and beyond the control."""
    pairs = [(sides.before[key], sides.after[key]) for key in keys]
    lost = sum(a.correct and not b.correct for a, b in pairs)
    won = sum(b.correct and not a.correct for a, b in pairs)
    right = sum(a.correct for a, _ in pairs)
    here, there, _ = _apart(sides, keys, _texts_differ)
    return {
        "bound": net_loss_bound(lost, won, right=right, total=len(pairs)),
        "flipped": clopper_pearson(sum(_texts_differ(a, b) for a, b in pairs), len(pairs)),
        "beyond": net_loss_bound(here, there, right=len(pairs), total=2 * len(pairs)),
    }


def _logprob(pairs: Sequence[tuple[SampleRecord, SampleRecord]]) -> float | None:
    """Only equal texts have the same tokens."""
    found = [
        abs(x - y)
        for a, b in pairs
        if a.text == b.text and len(a.logprobs) == len(b.logprobs)
        for x, y in zip(a.logprobs, b.logprobs, strict=True)
    ]
    return max(found, default=None)


def _texts_differ(a: SampleRecord, b: SampleRecord) -> bool:
    return (a.outcome, a.thought, a.text) != (b.outcome, b.thought, b.text)


def _answers_differ(a: SampleRecord, b: SampleRecord) -> bool:
    return a.given != b.given


def _constant(given: set[str], questions: set[str]) -> bool:
    return len(given) == 1 < len(questions)


def together(first: Sides, second: Sides) -> Sides:
    """Two passes as one, by the number of the sample.

    A sample is lost, won or flipped as in the pass where it changed; where it is lost in one and
    won in the other, as in the first.
    """
    return Sides(*_strongest(first, second))


def _strongest(first: Sides, second: Sides) -> Iterator[dict[str, SampleRecord]]:
    by = [[{each.number: each for each in side.values()} for side in sides]
          for sides in (first, second)]  # fmt: skip
    chosen = {}
    for number in by[0][0].keys() | by[1][0].keys():
        chosen[number] = max((0, 1), key=lambda turn: (_change(by[turn], number), -turn))
    for place in range(3):
        yield {
            str(number): by[turn][place][number]
            for number, turn in sorted(chosen.items())
            if number in by[turn][place]
        }


def _change(sides: Sequence[dict[int, SampleRecord]], number: int) -> int:
    """How much a sample changes: 3 lost, 2 won or another answer, 1 another text."""
    before, after = (side.get(number) for side in sides[:2])
    if before is None or after is None:
        return -1
    if before.correct and not after.correct:
        return 3
    return 2 * _answers_differ(before, after) or int(_texts_differ(before, after))


def more_flips(sides: Sides, *, texts: bool, noise: float) -> float:
    """Probability of so many flips if they are noise, among samples of all three runs.

    Noise is the flips in the control pair (exact sign test), and a share `noise` of samples that
    may flip although the control repeats itself.
    """
    keys = [key for key in sides.before if key in sides.after and key in sides.control]
    here, there, both = _apart(sides, keys, _texts_differ if texts else _answers_differ)
    beyond = binomial_tail(here, len(keys), noise)
    return max(beyond, at_least(here, here + there)) if there or both else beyond


def _apart(
    sides: Sides, keys: Iterable[str], differ: Callable[[SampleRecord, SampleRecord], bool]
) -> tuple[int, int, int]:
    """Count the samples that flip here alone, in the control alone, and in both."""
    here = there = both = 0
    for key in keys:
        before, again = sides.before[key], sides.control.get(key)
        flipped = differ(before, sides.after[key])
        noisy = again is not None and differ(before, again)
        here += flipped and not noisy
        there += noisy and not flipped
        both += flipped and noisy
    return here, there, both


def _flip(a: SampleRecord, b: SampleRecord) -> Flip | None:
    kind: Literal["text", "answer", "lost", "won"] = "text"
    if a.correct != b.correct:
        kind = "lost" if a.correct else "won"
    elif _answers_differ(a, b):
        kind = "answer"
    elif not _texts_differ(a, b):
        return None
    return Flip(id=a.id, before=a.given, after=b.given, expected=a.expected, kind=kind)
