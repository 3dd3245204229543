"""Training sequences: a generated document, then questions about it, each with its answer.

An answer is a chain of single steps: the thing, its keeper if the question takes two, the value;
then the choices from (A) on, up to the one with this value; the sentence with its letter. The
letter before a value is never looked up: it is easier to learn the text after a letter, and to stop
at an earlier value. Many documents end with a recital: the same facts in another order, every token
of which is a target. It teaches lookups long before questions do. Many end with a list of all
things and their keepers: two of the six shapes name a keeper before the thing, so that it must be
found backwards. Synthetic tasks come between documents.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

from kvproof.eval.benchmark.data import DIFFICULTIES, LETTERS, Difficulty
from kvproof.eval.benchmark.fact_base import FactBase, draw_facts
from kvproof.eval.benchmark.prompts import own_prompts
from kvproof.eval.benchmark.shapes import SHAPES, Shape, question
from kvproof.suites.tests.lab.probe_model.sequence_writer import (
    CHOICE,
    EASY,
    EASY_VALUE,
    HARD,
    HARD_VALUE,
    KEEPER,
    RECITAL,
    WORDING,
    Lesson,
    SequenceWriter,
)
from kvproof.suites.tests.lab.probe_model.synthetic_tasks import (
    FOUND,
    choices_task,
    keeper_list,
    keepers_task,
    notes,
)
from kvproof.suites.tests.lab.probe_model.vocabulary import ANSWER, ASSISTANT, END, USER, ids

_TOKENS_PER_LINE = 13
_TOKENS_PER_THING = 42
_TOKENS_PER_PAIR = 5
_TOKENS_PER_QUESTION = 72
_TOKENS_OF_PROMPT = 100

_LISTS = 0.8
"""Share of documents that end with a list of keepers."""

_INSTRUCTIONS = 0.15
"""Share of later questions that repeat the instruction."""

_SINGLE = 0.5
"""Share of lessons with one question, as in an evaluation."""


class Level(NamedTuple):
    """Difficulty of a sequence."""

    tokens: int
    """Length of the sequence."""
    fewest: int
    """Fewest and most things in a document."""
    most: int
    questions: int
    """Number of questions that fit; 1: never a second one; 0: a synthetic task."""
    recitals: float
    """Share of documents with a recital."""


LEVELS = (
    Level(256, 8, 8, 0, 0.0),
    Level(384, 4, 4, 1, 0.0),
    Level(704, 4, 6, 2, 0.8),
    Level(1280, 4, 10, 4, 0.5),
    Level(2048, 6, 20, 6, 0.3),
    Level(4096, 8, 32, 8, 0.2),
    Level(8704, 8, 32, 10, 0.1),
)
"""Synthetic tasks; then one question about a document of facts alone; then more and longer."""


class Question(NamedTuple):
    """One question: the numbers of the four things whose values are the choices."""

    difficulty: Difficulty
    things: tuple[int, ...]
    right: int


def lesson(rng: random.Random, level: Level) -> Lesson:
    """Draw a sequence of a level: a synthetic task, or a document and questions."""
    shape, base = rng.choice(SHAPES), draw_facts(rng, rng.randint(level.fewest, level.most))
    writer = SequenceWriter()
    if not level.questions:
        if rng.random() < 0.5:
            keepers_task(rng, writer)
        else:
            choices_task(rng, writer, base)
        return writer.lesson(len(writer.tokens), level.tokens)
    asked = _drawn(rng, base)
    if level.questions == 1 or rng.random() < _SINGLE:
        asked = asked[:1]
    _document(rng, writer, shape, base, level, min(level.questions, len(asked)))
    done = 0
    for each in asked:
        if done:
            writer.special(USER)
            writer.write("Question:")
        reported = not done or rng.random() < _INSTRUCTIONS
        _ask(writer, shape, base, each, _template()[2] if reported else "")
        if len(writer.tokens) > level.tokens:
            break
        done = len(writer.tokens)
    return writer.lesson(done, level.tokens) if done else lesson(rng, level)


def _document(
    rng: random.Random,
    writer: SequenceWriter,
    shape: Shape,
    base: FactBase,
    level: Level,
    questions: int,
) -> None:
    before, between, _ = _template()
    recited = rng.random() < level.recitals
    facts = len(base.things) * (_TOKENS_PER_THING * (2 if recited else 1) + _TOKENS_PER_PAIR)
    used = _TOKENS_OF_PROMPT + facts + questions * _TOKENS_PER_QUESTION
    fill = int(max(0, level.tokens - used) // _TOKENS_PER_LINE * rng.random() ** 0.5)
    writer.special(USER)
    writer.remember(before + shape.write(rng, base, fill), notes(shape, base))
    if recited:
        writer.write("\n")
        writer.answer(shape.write(rng, base, 0), RECITAL)
    if rng.random() < _LISTS:
        pairs = list(zip(base.things, base.keepers, strict=True))
        keeper_list(writer, rng.sample(pairs, len(pairs)))
    writer.write(between)


def _template() -> tuple[str, str, str]:
    head, tail = own_prompts().template.split("$DOC$")
    return head, tail.split(" $Q$")[0], tail.split("$C_D$")[1]


def _drawn(rng: random.Random, base: FactBase) -> list[Question]:
    """Questions with disjoint choices. A value next to several letters would be ambiguous."""
    count, four = len(base.things), len(LETTERS)
    asked = []
    for difficulty in DIFFICULTIES:
        order = rng.sample(range(count), count)
        fours = [tuple(order[n : n + four]) for n in range(0, count - four + 1, four)]
        asked += [Question(difficulty, things, rng.randrange(four)) for things in fours]
    rng.shuffle(asked)
    return asked


def _ask(
    writer: SequenceWriter, shape: Shape, base: FactBase, asked: Question, instruction: str
) -> None:
    thing = base.things[asked.things[asked.right]]
    answers = base.answers(asked.difficulty)
    pairs = zip(LETTERS, asked.things, strict=True)
    choices = "\n".join(f"({letter}) {answers[n]}" for letter, n in pairs)
    writer.write(f" {question(shape, asked.difficulty, thing)}\n{choices}{instruction}")
    writer.special(END)
    writer.special(ASSISTANT)
    for text, kind in _chain(base, asked):
        writer.answer(text, kind)
    writer.say(ids()[END], WORDING)


def _chain(base: FactBase, asked: Question) -> Iterator[tuple[str, int]]:
    """The steps of the reasoning; each needs one lookup."""
    thing, answers = asked.things[asked.right], base.answers(asked.difficulty)
    easy = asked.difficulty == "easy"
    yield base.things[thing], WORDING
    if not easy:
        yield ":", WORDING
        yield f" {base.keepers[thing]}", KEEPER
    yield ":", WORDING
    yield f" {answers[thing]}", EASY_VALUE if easy else HARD_VALUE
    yield f"{FOUND} (", WORDING
    for letter, number in zip(LETTERS[: asked.right + 1], asked.things, strict=False):
        yield f"{letter})", WORDING
        yield f" {answers[number]}", CHOICE
        yield FOUND if number == thing else " (", EASY if easy else HARD
    yield f" {ANSWER.format(letter=LETTERS[asked.right])}", WORDING
