"""Training sequences: a generated document, then questions about it, each with its answer.

An answer is a chain of single steps: the thing, its keeper if the question takes two, the value;
then the choices from (A) on, up to the one with this value; the sentence with its letter. Which
letter stands before a value is never looked up: what follows a letter is learned far faster, and
so is to stop at a value said before. Many documents are followed by a recital: the same facts in
another order, every token of which is a target. Looking things up is learned from it long before
questions are answered. In documents no value is ever looked for: drills, which are dense in
recitals of choices, teach to know one again. Two of the six shapes name a keeper before the thing,
so that it has to be found backwards: lists of all things with their keepers teach that.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvproof.eval.data import DIFFICULTIES, LETTERS, Difficulty
from kvproof.eval.probe_model.vocabulary import ANSWER, ASSISTANT, END, PAD, USER, encode, ids
from kvproof.eval.prompts import own_prompts
from kvproof.eval.shapes import SHAPES, Shape, question
from kvproof.eval.world import World, make_world, parts

NONE = -100
"""Target of a position that has none."""

KINDS = (
    "easy stop", "hard stop", "keeper", "easy value", "hard value", "wording", "recital", "choice",
    "drill", "list",
)  # fmt: skip
"""Kinds of targets: the sign after a recited choice, which goes on or stops; what is looked up."""

EASY, HARD, KEEPER, EASY_VALUE, HARD_VALUE, WORDING, RECITAL, CHOICE, DRILL, LIST = range(
    len(KINDS)
)

FOUND = "!"
"""Stands behind a value where it is found and where it is recited, and nowhere else: to stop is to
copy what followed the same words before."""

_TOKENS_PER_LINE = 13
_TOKENS_PER_THING = 42
_TOKENS_PER_PAIR = 5
_TOKENS_PER_QUESTION = 72
_TOKENS_OF_PROMPT = 100

_LISTS = 0.5
"""Share of documents that end with a list of keepers."""

_INSTRUCTIONS = 0.15
"""Share of later questions that repeat the instruction."""

_SINGLE = 0.5
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
    Level(256, 8, 8, 0, 0.0),
    Level(384, 4, 4, 1, 0.0),
    Level(704, 4, 6, 2, 0.8),
    Level(1280, 4, 10, 4, 0.5),
    Level(2048, 6, 20, 6, 0.3),
    Level(4096, 8, 32, 8, 0.2),
    Level(8704, 8, 32, 10, 0.1),
)
"""Drills; then one question about a document of facts alone; then more and longer."""


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
    """Write choices by fours, then recite them, fours in another order; targets: when to stop.

    A short document has one such sign in a hundred tokens, a drill one in twenty-five. How often
    a value stands before the choices is drawn: it tells nothing.
    """
    values = [*world.sites, *world.desks]
    rng.shuffle(values)
    fours = list(parts(values, len(LETTERS)))
    pen.special(USER)
    pen.write("\n".join(["Question:", *rng.choices(values, k=len(values))]))
    for four in fours:
        for letter, value in zip(LETTERS, four, strict=True):
            pen.write(f"\n({letter}) {value}")
    pen.special(END)
    pen.special(ASSISTANT)
    for four in rng.sample(fours, len(fours)):
        _recital(pen, four, rng.choice(four))
    pen.special(END)


def _recital(pen: _Pen, four: list[str], right: str) -> None:
    pen.write(f" {right}{FOUND} (")
    for letter, value in zip(LETTERS, four[: four.index(right) + 1], strict=False):
        pen.write(f"{letter})")
        pen.write(f" {value}")
        pen.tell(FOUND if value == right else " (", DRILL)


def _document(
    rng: random.Random, pen: _Pen, shape: Shape, world: World, level: Level, questions: int
) -> None:
    """Begin the prompt of an evaluation, up to the question."""
    before, between, _ = _template()
    recited = rng.random() < level.recitals
    facts = len(world.things) * (_TOKENS_PER_THING * (2 if recited else 1) + _TOKENS_PER_PAIR)
    used = _TOKENS_OF_PROMPT + facts + questions * _TOKENS_PER_QUESTION
    fill = int(max(0, level.tokens - used) // _TOKENS_PER_LINE * rng.random() ** 0.5)
    pen.special(USER)
    pen.write(before + shape.write(rng, world, fill))
    if recited:
        pen.write("\n")
        pen.tell(shape.write(rng, world, 0), RECITAL)
    if rng.random() < _LISTS:
        _keepers(rng, pen, world)
    pen.write(between)


def _keepers(rng: random.Random, pen: _Pen, world: World) -> None:
    """Write each thing and, as a target, its keeper."""
    pairs = list(zip(world.things, world.keepers, strict=True))
    for thing, keeper in rng.sample(pairs, len(pairs)):
        pen.write(f"\n{thing}:")
        pen.tell(f" {keeper}", LIST)


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
    """One step of the reasoning after the other: each takes one look."""
    thing, answers = asked.things[asked.right], world.answers(asked.difficulty)
    easy = asked.difficulty == "easy"
    yield world.things[thing], WORDING
    if not easy:
        yield ":", WORDING
        yield f" {world.keepers[thing]}", KEEPER
    yield ":", WORDING
    yield f" {answers[thing]}", EASY_VALUE if easy else HARD_VALUE
    yield f"{FOUND} (", WORDING
    for letter, number in zip(LETTERS[: asked.right + 1], asked.things, strict=False):
        yield f"{letter})", WORDING
        yield f" {answers[number]}", CHOICE
        yield FOUND if number == thing else " (", EASY if easy else HARD
    yield f" {ANSWER.format(letter=LETTERS[asked.right])}", WORDING


def _finished(pen: _Pen, used: int, size: int) -> Lesson:
    """Cut off the question that did not fit, and pad."""
    tokens = np.full(size, ids()[PAD], np.int16)
    tokens[:used] = pen.tokens[:used]
    targets, kinds = np.full(size, NONE, np.int16), np.zeros(size, np.int8)
    for place, (token, kind) in pen.targets.items():
        if place < used:
            targets[place], kinds[place] = token, kind
    return Lesson(tokens, targets, kinds)
