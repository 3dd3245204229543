"""A generated miniature of SCBench, for small models and for tests."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence

from kvproof.eval.benchmark.words import filler
from kvproof.eval.run.generator import GeneratorOptions, generate
from kvproof.eval.scbench.data import Session, Task, Turn

TURNS = 2
"""Turns of each session; the generator of documents has two questions for each."""

_SIGNS = "abcdefghijklmnopqrstuvwxyz0123456789"


def miniature(tasks: Sequence[Task], sessions: int, *, seed: int = 0) -> list[Session]:
    """Draw sessions with contexts of about 400 words; the same arguments give the same texts."""
    return [
        each
        for task in tasks
        for each in (
            _choices(sessions, seed) if task == "choice_eng" else _drawn(task, sessions, seed)
        )
    ]


def _choices(sessions: int, seed: int) -> Iterator[Session]:
    made = generate(GeneratorOptions(samples=3 * sessions, max_tokens=2000, seed=seed))
    pairs = [
        pair for pair in zip(made.samples, made.shared, strict=True) if pair[0].length == "short"
    ]
    for pair in pairs[:sessions]:
        turns = tuple(
            Turn(input=e.question, answer=e.choices["ABCD".index(e.answer)], options=e.choices)
            for e in pair
        )
        yield Session(task="choice_eng", id=pair[0].id, context=pair[0].context, turns=turns)


def _drawn(task: Task, sessions: int, seed: int) -> Iterator[Session]:
    for number in range(sessions):
        rng = random.Random(f"scbench {task} {seed} {number}")  # noqa: S311 - drawn to be repeated
        context, turns = _DRAWS[task](rng)
        yield Session(task=task, id=f"{task}-{seed}-{number}", context=context, turns=turns)


def _word(rng: random.Random, size: int) -> str:
    return "".join(rng.choices(_SIGNS, k=size))


def _kv(rng: random.Random) -> tuple[str, tuple[Turn, ...]]:
    values = {_word(rng, 8): _word(rng, 8) for _ in range(24)}
    asked = rng.sample(sorted(values), TURNS)
    ask = 'Key: "{key}"\nThe value of this key is:'
    turns = tuple(Turn(input=ask.format(key=key), answer=values[key]) for key in asked)
    return json.dumps(values), turns


def _prefix_suffix(rng: random.Random) -> tuple[str, tuple[Turn, ...]]:
    words = [_word(rng, 20) for _ in range(24)]
    ask = "Prefix: {0}\nSuffix: {1}\nThe string with this prefix and suffix is:"
    turns = tuple(
        Turn(input=ask.format(each[:6], each[-6:]), answer=each)
        for each in rng.sample(words, TURNS)
    )
    return "\n".join(words), turns


def _vt(rng: random.Random) -> tuple[str, tuple[Turn, ...]]:
    chains, lines = [], []
    for value in rng.sample(range(10_000, 99_999), TURNS):
        names = ["".join(rng.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZ", k=5)) for _ in range(4)]
        sources = [str(value), *(f"VAR {name}" for name in names)]
        lines.append([f"VAR {n} = {s}" for n, s in zip(names, sources, strict=False)])
        chains.append((value, names))
    mixed = [line for hop in zip(*lines, strict=True) for line in hop]
    text = [part for line in mixed for part in (line, *(filler(rng) for _ in range(3)))]
    ask = "Find all variables that have the value {0}. They are:"
    turns = tuple(Turn(input=ask.format(value), answer=tuple(names)) for value, names in chains)
    return "\n".join(text), turns


_DRAWS = {"kv": _kv, "prefix_suffix": _prefix_suffix, "vt": _vt}
