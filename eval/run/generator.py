"""Generated samples in the shape of LongBench v2, which only their document answers.

The four choices are values of four things of the document, drawn alike; the thing of the question
is drawn last. So neither the choices, their order, their length nor their place in the document
reveals the answer.
"""

from __future__ import annotations

import hashlib
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from kvproof.eval.benchmark.data import (
    LENGTHS,
    LETTERS,
    Difficulty,
    Length,
    Letter,
    Sample,
    write_data,
)
from kvproof.eval.benchmark.fact_base import FactBase, draw_facts
from kvproof.eval.benchmark.shapes import SHAPES, Shape, question
from kvproof.harness.errors import UsageError

VERSION = 1
"""Incremented when the same seed gives other samples."""

_FLOORS: dict[Length, float] = {"short": 0.1, "medium": 0.3, "long": 0.8}
"""Minimum length of each class, as a share of the longest document."""

_CEILINGS: dict[Length, float] = {"short": 0.2, "medium": 0.5, "long": 0.97}

_THINGS: dict[Length, int] = {"short": 12, "medium": 20, "long": 32}

_TOKENS_PER_THING = 60
"""Most tokens of a thing with its three facts, in any shape."""

_WORDS = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class GeneratorOptions:
    """Options of the generator; the same options give the same bytes. Raises UsageError."""

    samples: int = 48
    max_tokens: int = 8000
    """Tokens of the longest document, as counted by `count_tokens`."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise UsageError(f"{self.samples} samples cannot be generated", "for example 48")
        if self.max_tokens < _SMALLEST:
            raise UsageError(
                f"documents of {self.max_tokens} tokens cannot hold their facts",
                f"at least {_SMALLEST}, for example 8000",
            )


_SMALLEST = 2000


class Generated(NamedTuple):
    """Samples, and for each another question about the same document (pass C)."""

    samples: tuple[Sample, ...]
    shared: tuple[Sample, ...]


def count_tokens(text: str) -> int:
    """Count words and signs, close to the tokens of a tokenizer trained on these documents."""
    return len(_WORDS.findall(text))


def generate(options: GeneratorOptions | None = None) -> Generated:
    """Draw samples: domains, lengths, difficulties and letters in equal shares."""
    options = options or GeneratorOptions()
    first, second = (_letters(options, turn) for turn in ("first", "second"))
    made = [_pair(options, number, first, second) for number in range(options.samples)]
    return Generated(tuple(pair[0] for pair in made), tuple(pair[1] for pair in made))


def write_generated(directory: Path, options: GeneratorOptions | None = None) -> tuple[Path, Path]:
    """Write data.json and shared.json; return their paths. Raises UsageError."""
    made = generate(options)
    data = write_data(directory / "data.json", made.samples)
    return data, write_data(directory / "shared.json", made.shared)


def _pair(
    options: GeneratorOptions, number: int, first: list[Letter], second: list[Letter]
) -> tuple[Sample, Sample]:
    rng = random.Random(f"kvproof {VERSION} {options.seed} {number}")  # noqa: S311 - drawn to be repeated
    turn = number // len(SHAPES)
    shape, length = SHAPES[number % len(SHAPES)], LENGTHS[(number + turn) % len(LENGTHS)]
    size = min(_THINGS[length], int(options.max_tokens * _FLOORS[length]) // _TOKENS_PER_THING)
    base = draw_facts(rng, max(size, 2 * len(LETTERS)))
    context = _document(rng, shape, base, length, options.max_tokens)
    difficulty: Difficulty = "hard" if turn % 2 else "easy"
    answers = base.answers(difficulty)
    things = rng.sample(range(len(base.things)), 2 * len(LETTERS))

    def asked(turn: int, letter: Letter) -> Sample:
        """Ask about the thing at the letter; the choices are values of all four things."""
        mine = things[turn * len(LETTERS) :][: len(LETTERS)]
        return Sample(
            id=_identity(options, number, turn),
            domain=shape.domain,
            sub_domain=shape.sub_domain,
            difficulty=difficulty,
            length=length,
            question=question(shape, difficulty, base.things[mine[LETTERS.index(letter)]]),
            **{f"choice_{n.lower()}": answers[t] for n, t in zip(LETTERS, mine, strict=True)},
            answer=letter,
            context=context,
        )

    return asked(0, first[number]), asked(1, second[number])


def _document(
    rng: random.Random, shape: Shape, base: FactBase, length: Length, max_tokens: int
) -> str:
    wanted = int(max_tokens * rng.uniform(_FLOORS[length], _CEILINGS[length]))
    state = rng.getstate()
    few, many = (_length_with(rng, state, shape, base, fill) for fill in (0, 300))
    fill = max(0, (wanted - few) * 300 // (many - few))
    rng.setstate(state)
    return shape.write(rng, base, fill)


def _length_with(
    rng: random.Random, state: tuple[object, ...], shape: Shape, base: FactBase, fill: int
) -> int:
    rng.setstate(state)
    return count_tokens(shape.write(rng, base, fill))


def _letters(options: GeneratorOptions, turn: str) -> list[Letter]:
    rng = random.Random(f"kvproof {VERSION} {options.seed} {turn} letters")  # noqa: S311 - as above
    rounds = -(-options.samples // len(LETTERS))
    letters = [each for _ in range(rounds) for each in rng.sample(LETTERS, len(LETTERS))]
    letters = letters[: options.samples]
    rng.shuffle(letters)
    return letters


def _identity(options: GeneratorOptions, number: int, turn: int) -> str:
    text = f"kvproof {VERSION} {options.seed} {options.max_tokens} {number} {turn}"
    return hashlib.sha256(text.encode()).hexdigest()[:24]
