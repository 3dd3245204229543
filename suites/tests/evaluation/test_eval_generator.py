"""Generated samples: only the document answers them, and the same seed gives the same bytes."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from kvproof.eval.benchmark.data import DIFFICULTIES, DOMAINS, LENGTHS, LETTERS, DataSet, Sample
from kvproof.eval.benchmark.words import FIRST, PEOPLE, PLACES, SECOND, SIDES
from kvproof.eval.run.generator import (
    GeneratorOptions,
    count_tokens,
    generate,
    write_generated,
)
from kvproof.harness.errors import UsageError
from kvproof.suites.tests.evaluation.eval_reader import read, thing_of

DEFAULT = generate()
MANY = generate(GeneratorOptions(samples=600, max_tokens=2000, seed=7))
BOTH = [*MANY.samples, *MANY.shared]
"""1,200 questions over 600 documents."""


def near_chance(right: int, total: int) -> bool:
    """Within four standard deviations of a quarter."""
    return abs(right - total / 4) < 4 * math.sqrt(total * 3 / 16)


@pytest.mark.parametrize("made", [DEFAULT.samples, DEFAULT.shared, MANY.samples, MANY.shared])
def test_the_document_answers_every_question(made: tuple[Sample, ...]) -> None:
    assert [read(each.context, each.question, each.choices) for each in made] == [
        each.answer for each in made
    ]


def test_a_foreign_document_answers_none() -> None:
    strangers = [*BOTH[6:], *BOTH[:6]]  # of the same domain
    answers = [
        read(other.context, each.question, each.choices)
        for each, other in zip(BOTH, strangers, strict=True)
    ]
    right = sum(given == each.answer for given, each in zip(answers, BOTH, strict=True))
    assert right < len(BOTH) / 100


def pick(sample: Sample, key: Callable[[str], float]) -> str:
    return LETTERS[max(range(4), key=lambda n: key(sample.choices[n]))]


def overlap(sample: Sample, choice: str) -> float:
    return len(set(choice.split()) & set(sample.question.lower().split()))


def near_asked(sample: Sample, choice: str) -> float:
    """How near a choice stands to the first mention of what is asked for, across lines."""
    place = sample.context.find(thing_of(sample.question)[0])
    return -abs(sample.context.find(choice) - place)


HEURISTICS: dict[str, Callable[[Sample, str], float]] = {
    "longest": lambda _, choice: len(choice),
    "shortest": lambda _, choice: -len(choice),
    "first of the alphabet": lambda _, choice: -ord(choice[0]),
    "last of the alphabet": lambda _, choice: ord(choice[0]),
    "first in the document": lambda sample, choice: -sample.context.find(choice),
    "last in the document": lambda sample, choice: sample.context.find(choice),
    "in the middle": lambda s, choice: -abs(s.context.find(choice) - len(s.context) / 2),
    "most often in the document": lambda sample, choice: sample.context.count(choice),
    "like the question": overlap,
}


@pytest.mark.parametrize("name", HEURISTICS)
def test_without_reading_an_answer_is_right_by_chance(name: str) -> None:
    right = sum(pick(s, lambda c: HEURISTICS[name](s, c)) == s.answer for s in BOTH)  # noqa: B023 - called at once
    assert near_chance(right, len(BOTH)), f"{name}: {right} of {len(BOTH)}"


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_what_stands_near_the_thing_answers_only_easy_questions(difficulty: str) -> None:
    asked = [each for each in BOTH if each.difficulty == difficulty]
    right = sum(pick(s, lambda c: near_asked(s, c)) == s.answer for s in asked)  # noqa: B023 - called at once
    assert near_chance(right, len(asked)) == (difficulty == "hard")


@pytest.mark.parametrize("made", [DEFAULT.samples, DEFAULT.shared, MANY.samples, MANY.shared])
def test_letters_are_equally_frequent(made: tuple[Sample, ...]) -> None:
    assert set(Counter(each.answer for each in made).values()) == {len(made) // 4}


def test_letters_do_not_depend_on_what_is_known_beforehand() -> None:
    for field in ("domain", "length", "difficulty"):
        for value, total in Counter(getattr(each, field) for each in BOTH).items():
            for letter in LETTERS:
                right = sum(e.answer == letter for e in BOTH if getattr(e, field) == value)
                assert near_chance(right, total), (field, value, letter)


def test_all_choices_of_a_question_stand_equally_often_in_the_document() -> None:
    for each in [*DEFAULT.samples, *DEFAULT.shared]:
        assert len(set(each.choices)) == 4
        assert {each.context.count(choice) for choice in each.choices} == {1}


def test_right_choices_are_as_long_as_wrong_ones() -> None:
    right = [len(each.choices[LETTERS.index(each.answer)]) for each in BOTH]
    lengths = [len(choice) for each in BOTH for choice in each.choices]
    mean = sum(lengths) / len(lengths)
    deviation = math.sqrt(sum((each - mean) ** 2 for each in lengths) / len(lengths))
    assert abs(sum(right) / len(right) - mean) < 4 * deviation / math.sqrt(len(right))


def test_the_default_set_has_every_kind_in_equal_shares() -> None:
    samples = DEFAULT.samples
    assert len(samples) == 48
    assert Counter(each.domain for each in samples) == dict.fromkeys(DOMAINS, 8)
    assert Counter(each.length for each in samples) == dict.fromkeys(LENGTHS, 16)
    assert Counter(each.difficulty for each in samples) == dict.fromkeys(DIFFICULTIES, 24)
    assert len({each.context for each in samples}) == 48


@pytest.mark.parametrize("options", [GeneratorOptions(), GeneratorOptions(12, 4000, 3)])
def test_lengths_are_in_their_bounds(options: GeneratorOptions) -> None:
    share = {
        length: [
            count_tokens(each.context) / options.max_tokens
            for each in generate(options).samples
            if each.length == length
        ]
        for length in LENGTHS
    }
    assert max(share["long"]) <= 1
    assert max(share["short"]) < min(share["medium"])
    assert max(share["medium"]) < min(share["long"])


def test_the_second_question_shares_document_and_kind_but_nothing_else() -> None:
    for first, second in zip(DEFAULT.samples, DEFAULT.shared, strict=True):
        assert first.context == second.context
        assert (first.domain, first.difficulty, first.length) == (
            second.domain,
            second.difficulty,
            second.length,
        )
        assert first.id != second.id
        assert first.question != second.question
        assert not set(first.choices) & set(second.choices)


def test_no_document_begins_like_another() -> None:
    """Or a cache would hit before a sample was asked twice."""
    heads = {each.context[:64] for each in DEFAULT.samples}
    assert len(heads) == len(DEFAULT.samples)


def test_the_same_seed_gives_the_same_bytes_on_every_python(tmp_path: Path) -> None:
    data, shared = write_generated(tmp_path)
    assert hashlib.sha256(data.read_bytes()).hexdigest()[:16] == "95d67db66281d011"
    assert hashlib.sha256(shared.read_bytes()).hexdigest()[:16] == "ca93f4317f6d32d2"
    assert generate(GeneratorOptions(seed=1)).samples != DEFAULT.samples
    with DataSet(data) as read_again:
        assert [read_again.sample(n) for n in range(48)] == list(DEFAULT.samples)


def test_the_vocabulary_has_no_word_twice() -> None:
    for words in (FIRST, SECOND, PLACES, SIDES, PEOPLE):
        assert len(set(words)) == len(words)
    assert not set(SIDES) & set(FIRST)
    assert not set(PLACES) & set(SECOND)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"samples": 0}, "0 samples cannot"), ({"max_tokens": 900}, "900 tokens cannot hold")],
)
def test_impossible_sets_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        GeneratorOptions(**options)
