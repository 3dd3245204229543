"""Training sequences: a generated document, then questions about it, each with its answer.

An answer is a chain of single lookups: the thing, its keeper if the question takes two steps, the
value, the letter before that value among the choices, the sentence with this letter. Beside that,
many documents are followed by a recital: the same facts in another order, every token of which is
a target. Looking things up is learned from it long before questions are answered. In documents
values follow and are never asked for; drills teach to look up what stands before them.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import cycle
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvproof.eval.data import DIFFICULTIES, LETTERS, Difficulty
from kvproof.eval.probe_model.vocabulary import ANSWER, ASSISTANT, END, PAD, USER, encode, ids
from kvproof.eval.prompts import own_prompts
from kvproof.eval.shapes import SHAPES, Shape, question
from kvproof.eval.world import World, make_world

NONE = -100
"""Target of a position that has none."""

KINDS = (
    "easy letter", "hard letter", "keeper", "easy value", "hard value", "wording", "recital",
    "drill",
)  # fmt: skip
"""Kinds of targets: the letter right after the value, what is looked up before it, the rest."""

EASY, HARD, KEEPER, EASY_VALUE, HARD_VALUE, WORDING, RECITAL, DRILL = range(len(KINDS))

_TOKENS_PER_LINE = 13
_TOKENS_PER_THING = 42
_TOKENS_PER_QUESTION = 62
_TOKENS_OF_PROMPT = 100

_INSTRUCTIONS = 0.15
"""Share of later questions that repeat the instruction."""

_SINGLE = 0.3
"""Share of lessons with one question, as in an evaluation."""


class Level(NamedTuple):
    """How hard a sequence is."""

    tokens: int
    """Length of the sequence."""
    fewest: int
    """Things in a document, at least and at most."""
    most: int
    questions: int
    """So many are left room for; 1: there is never a second one; 0: a drill."""
    recitals: float
    """Share of documents with a recital."""


LEVELS = (
    Level(256, 10, 10, 0, 0.0),
    Level(384, 4, 4, 1, 0.0),
    Level(704, 4, 6, 2, 0.8),
    Level(1280, 4, 10, 4, 0.5),
    Level(2048, 6, 20, 6, 0.3),
    Level(4096, 8, 32, 8, 0.2),
    Level(8704, 8, 32, 10, 0.1),
)
"""The first are drills, the second ones ask one question each about a document of facts alone."""


class Lesson(NamedTuple):
    """One sequence: token ids, the target of each position, the kind of each target."""

    tokens: NDArray[np.int16]
    targets: NDArray[np.int16]
    kinds: NDArray[np.int8]


class _Pen:
    """Writes a sequence token by token."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.targets: dict[int, tuple[int, int]] = {}

    def write(self, text: str) -> None:
        self.tokens += encode(text)

    def tell(self, text: str, kind: int) -> None:
        """Write a text that the model shall have said."""
        for token in encode(text):
            self.say(token, kind)

    def special(self, name: str) -> None:
        self.tokens.append(ids()[name])

    def say(self, token: int, kind: int) -> None:
        """Write a token that the model shall have said."""
        self.targets[len(self.tokens) - 1] = (token, kind)
        self.tokens.append(token)


class Asked(NamedTuple):
    """One question: the numbers of the four things whose values are the choices."""

    difficulty: Difficulty
    things: tuple[int, ...]
    right: int


def lesson(rng: random.Random, level: Level) -> Lesson:
    """Draw a sequence of a level: a drill, or a document and questions."""
    shape, world = rng.choice(SHAPES), make_world(rng, rng.randint(level.fewest, level.most))
    pen = _Pen()
    if not level.questions:
        _drill(rng, pen, world)
        return _finished(pen, len(pen.tokens), level.tokens)
    asked = _drawn(rng, world)
    if level.questions == 1 or rng.random() < _SINGLE:
        asked = asked[:1]
    _document(rng, pen, shape, world, level, min(level.questions, len(asked)))
    done = 0
    for each in asked:
        if done:
            pen.special(USER)
            pen.write("Question:")
        told = not done or rng.random() < _INSTRUCTIONS
        _ask(pen, shape, world, each, _template()[2] if told else "")
        if len(pen.tokens) > level.tokens:
            break
        done = len(pen.tokens)
    return _finished(pen, done, level.tokens) if done else lesson(rng, level)


def _drill(rng: random.Random, pen: _Pen, world: World) -> None:
    """Write values with letters before them, then the same in another order with letters behind.

    A question has one letter in sixty tokens, a drill one in twelve. In every second drill the
    letters are drawn, so that none can be told from the others; else they follow each other as in
    questions.
    """
    values = (*world.sites, *world.desks)
    drawn = rng.random() < 0.5
    letters: Iterable[str] = rng.choices(LETTERS, k=len(values)) if drawn else cycle(LETTERS)
    pairs = list(zip(letters, values, strict=False))
    pen.special(USER)
    pen.write("Question:\n" + "\n".join(f"({letter}) {value}" for letter, value in pairs))
    pen.special(END)
    pen.special(ASSISTANT)
    for letter, value in rng.sample(pairs, len(pairs)):
        pen.write(f" {value} (")
        pen.tell(letter, DRILL)
        pen.write(")")
        pen.write(".")
    pen.special(END)


def _document(
    rng: random.Random, pen: _Pen, shape: Shape, world: World, level: Level, questions: int
) -> None:
    """Begin the prompt of an evaluation, up to the question."""
    before, between, _ = _template()
    recited = rng.random() < level.recitals
    facts = len(world.things) * _TOKENS_PER_THING * (2 if recited else 1)
    used = _TOKENS_OF_PROMPT + facts + questions * _TOKENS_PER_QUESTION
    fill = int(max(0, level.tokens - used) // _TOKENS_PER_LINE * rng.random() ** 0.5)
    pen.special(USER)
    pen.write(before + shape.write(rng, world, fill))
    if recited:
        pen.write("\n")
        pen.tell(shape.write(rng, world, 0), RECITAL)
    pen.write(between)


def _template() -> tuple[str, str, str]:
    """The prompt up to the document, from it to the question, and after the choices."""
    head, tail = own_prompts().template.split("$DOC$")
    return head, tail.split(" $Q$")[0], tail.split("$C_D$")[1]


def _drawn(rng: random.Random, world: World) -> list[Asked]:
    """Questions none of whose choices is one of another question.

    A value that stood beside several letters would leave open which of them is meant.
    """
    count, four = len(world.things), len(LETTERS)
    asked = []
    for difficulty in DIFFICULTIES:
        order = rng.sample(range(count), count)
        fours = [tuple(order[n : n + four]) for n in range(0, count - four + 1, four)]
        asked += [Asked(difficulty, things, rng.randrange(four)) for things in fours]
    rng.shuffle(asked)
    return asked


def _ask(pen: _Pen, shape: Shape, world: World, asked: Asked, instruction: str) -> None:
    """Write a question and, as targets, its answer."""
    thing = world.things[asked.things[asked.right]]
    answers = world.answers(asked.difficulty)
    pairs = zip(LETTERS, asked.things, strict=True)
    choices = "\n".join(f"({letter}) {answers[n]}" for letter, n in pairs)
    pen.write(f" {question(shape, asked.difficulty, thing)}\n{choices}{instruction}")
    pen.special(END)
    pen.special(ASSISTANT)
    for text, kind in _chain(world, asked):
        pen.tell(text, kind)
    pen.say(ids()[END], WORDING)


def _chain(world: World, asked: Asked) -> Iterator[tuple[str, int]]:
    """One step of the reasoning after the other: each is one thing to look up."""
    thing, letter = asked.things[asked.right], LETTERS[asked.right]
    easy = asked.difficulty == "easy"
    yield world.things[thing], WORDING
    if not easy:
        yield ":", WORDING
        yield f" {world.keepers[thing]}", KEEPER
    yield ":", WORDING
    yield f" {world.answers(asked.difficulty)[thing]}", EASY_VALUE if easy else HARD_VALUE
    yield " (", WORDING
    yield letter, EASY if easy else HARD
    yield ")", WORDING
    yield ".", WORDING  # apart from the bracket: both together are no word
    yield f" {ANSWER.format(letter=letter)}", WORDING


def _finished(pen: _Pen, used: int, size: int) -> Lesson:
    """Cut off the question that did not fit, and pad."""
    tokens = np.full(size, ids()[PAD], np.int16)
    tokens[:used] = pen.tokens[:used]
    targets, kinds = np.full(size, NONE, np.int16), np.zeros(size, np.int8)
    for place, (token, kind) in pen.targets.items():
        if place < used:
            targets[place], kinds[place] = token, kind
    return Lesson(tokens, targets, kinds)
