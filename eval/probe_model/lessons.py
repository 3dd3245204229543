"""Training sequences: a generated document, then many questions about it, each with its answer.

Beside the answer's letter, positions inside a question are told what stands in the document: the
keeper at the end of the question, the answer before the choices, and at each choice whether it is
the answer. Many documents are followed by a recital: the same facts in another order, every token
of which is a target. Looking things up is learned from it long before questions are answered.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvproof.eval.data import DIFFICULTIES, LETTERS, Difficulty
from kvproof.eval.probe_model.vocabulary import ASSISTANT, END, PAD, USER, encode, ids
from kvproof.eval.prompts import own_prompts
from kvproof.eval.shapes import SHAPES, Shape, question
from kvproof.eval.world import World, make_world

NONE = -100
"""Target of a position that has none."""

KINDS = (
    "easy", "hard", "keeper", "easy value", "hard value", "choice", "wording", "recital"
)  # fmt: skip
"""Kinds of targets: letters of answers, what the document says, whether a choice is right, rest."""

EASY, HARD, KEEPER, EASY_VALUE, HARD_VALUE, CHOICE, WORDING, RECITAL = range(len(KINDS))

_TOKENS_PER_LINE = 13
_TOKENS_PER_THING = 42
_TOKENS_PER_QUESTION = 62

_INSTRUCTIONS = 0.15
"""Share of later questions that repeat the instruction."""


class Level(NamedTuple):
    """How hard a sequence is."""

    tokens: int
    """Length of the sequence."""
    fewest: int
    """Things in a document, at least and at most."""
    most: int
    questions: int
    """At least so many, as far as there are things."""
    recitals: float
    """Share of documents with a recital."""


LEVELS = (
    Level(704, 4, 6, 4, 0.8),
    Level(1280, 4, 10, 6, 0.5),
    Level(2048, 6, 20, 8, 0.3),
    Level(4096, 8, 32, 12, 0.2),
    Level(8704, 8, 32, 14, 0.1),
)


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

    def target(self, token: int, kind: int) -> None:
        """What the model shall say after the last token."""
        self.targets[len(self.tokens) - 1] = (token, kind)

    def say(self, token: int, kind: int) -> None:
        """Write a token that the model shall have said."""
        self.target(token, kind)
        self.tokens.append(token)


class Asked(NamedTuple):
    """One question: the numbers of the four things whose values are the choices."""

    difficulty: Difficulty
    things: tuple[int, ...]
    right: int


def lesson(rng: random.Random, level: Level) -> Lesson:
    """Draw a document and questions that fill a level's sequence."""
    shape = rng.choice(SHAPES)
    world = make_world(rng, rng.randint(level.fewest, level.most))
    pen = _Pen()
    before, between, instruction = _template()
    pen.special(USER)
    recited = rng.random() < level.recitals
    pen.write(before + shape.write(rng, world, _fill(rng, level, len(world.things), recited)))
    if recited:
        pen.write("\n")
        pen.tell(shape.write(rng, world, 0), RECITAL)
    pen.write(between)
    done = 0
    for asked in _drawn(rng, world):
        if done:
            pen.special(USER)
            pen.write("Question:")
        _ask(
            pen,
            shape,
            world,
            asked,
            instruction if _told(rng, first=not done) else "",
            first=not done,
        )
        if len(pen.tokens) > level.tokens:
            break
        done = len(pen.tokens)
    return _finished(pen, done, level.tokens) if done else lesson(rng, level)


def _fill(rng: random.Random, level: Level, things: int, recited: bool) -> int:  # noqa: FBT001 - one caller, above
    facts = things * _TOKENS_PER_THING * (2 if recited else 1)
    used = 100 + facts + level.questions * _TOKENS_PER_QUESTION
    room = max(0, level.tokens - used) // _TOKENS_PER_LINE
    return int(room * rng.random() ** 0.5)


def _template() -> tuple[str, str, str]:
    """The prompt up to the document, from it to the question, and after the choices."""
    head, tail = own_prompts().template.split("$DOC$")
    return head, tail.split(" $Q$")[0], tail.split("$C_D$")[1]


def _told(rng: random.Random, *, first: bool) -> bool:
    """The first question comes with the instruction of the prompt, later ones now and then."""
    return first or rng.random() < _INSTRUCTIONS


def _drawn(rng: random.Random, world: World) -> list[Asked]:
    """Every fact once, in random order, so that no earlier answer tells a later one."""
    count = len(world.things)
    facts = [(difficulty, thing) for difficulty in DIFFICULTIES for thing in range(count)]
    rng.shuffle(facts)
    return [_asked(rng, difficulty, thing, count) for difficulty, thing in facts]


def _asked(rng: random.Random, difficulty: Difficulty, thing: int, count: int) -> Asked:
    others = rng.sample([n for n in range(count) if n != thing], len(LETTERS) - 1)
    right = rng.randrange(len(LETTERS))
    return Asked(difficulty, (*others[:right], thing, *others[right:]), right)


def _ask(
    pen: _Pen, shape: Shape, world: World, asked: Asked, instruction: str, *, first: bool
) -> None:
    thing = asked.things[asked.right]
    answers = world.answers(asked.difficulty)
    easy = asked.difficulty == "easy"
    pen.write(f" {question(shape, asked.difficulty, world.things[thing])}")
    if not easy:
        pen.target(ids()[f" {world.keepers[thing]}"], KEEPER)
    pen.write("\n")
    choices = "\n".join(
        f"({letter}) {answers[n]}" for letter, n in zip(LETTERS, asked.things, strict=True)
    )
    if easy:
        side, place = encode(f" {answers[thing]}")
        pen.target(side, EASY_VALUE)
        pen.write("(")
        pen.target(place, EASY_VALUE)
        choices = choices[1:]
    pen.write(choices + instruction)
    pen.special(END)
    _answer(pen, world, asked, first=first)


def _answer(pen: _Pen, world: World, asked: Asked, *, first: bool) -> None:
    """One step of the reasoning after the other, then the choice: each is one thing to look up.

    Only the first question teaches its letter: later, a value has stood beside several letters.
    """
    thing, letter = asked.things[asked.right], LETTERS[asked.right]
    value, kind = (EASY_VALUE, EASY) if asked.difficulty == "easy" else (HARD_VALUE, HARD)
    pen.special(ASSISTANT)
    pen.tell(world.things[thing], WORDING)
    if asked.difficulty == "hard":
        pen.tell(":", WORDING)
        pen.tell(f" {world.keepers[thing]}", KEEPER)
    pen.tell(":", WORDING)
    pen.tell(f" {world.answers(asked.difficulty)[thing]}", value)
    pen.tell(" (", WORDING)
    pen.tell(letter, CHOICE) if first else pen.write(letter)
    pen.tell(")", WORDING)
    pen.tell(".", WORDING)
    pen.tell(" The correct answer is (", WORDING)
    pen.tell(letter, kind) if first else pen.write(letter)
    pen.tell(")", WORDING)
    pen.say(ids()[END], WORDING)


def _finished(pen: _Pen, used: int, size: int) -> Lesson:
    """Cut off the question that did not fit, and pad."""
    tokens = np.full(size, ids()[PAD], np.int16)
    tokens[:used] = pen.tokens[:used]
    targets, kinds = np.full(size, NONE, np.int16), np.zeros(size, np.int8)
    for place, (token, kind) in pen.targets.items():
        if place < used:
            targets[place], kinds[place] = token, kind
    return Lesson(tokens, targets, kinds)
