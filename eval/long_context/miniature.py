"""A generated miniature of MRCR, in the format of the public files; synthetic in every name."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from kvproof.eval.benchmark.words import filler
from kvproof.harness.records.run_directory import store

NEEDLES = (2, 4, 8)

_ORDER = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
_KINDS = ("poem", "riddle", "short story", "news article")
_TOPICS = ("tapirs", "bridges", "winter", "clocks", "bakers", "rivers", "chess", "lanterns")
_OTHERS = 8
"""Requests of a conversation that ask for something else."""

_SIGNS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


def write_miniature(path: Path, samples: int, *, seed: int = 0) -> Path:
    """Write rows for each number of needles, as JSON Lines. Raises UsageError."""
    rows = (
        _row(random.Random(f"mrcr {seed} {needles} {number}"), needles)  # noqa: S311 - drawn to be repeated
        for needles in NEEDLES
        for number in range(samples)
    )
    return store(path, b"".join(msgspec.json.encode(row) + b"\n" for row in rows))


def _row(rng: random.Random, needles: int) -> dict[str, Any]:
    """One conversation, in which the same request stands so many times, and the last question."""
    wanted = (rng.choice(_KINDS), rng.choice(_TOPICS))
    asked = [wanted] * needles + [_other(rng, wanted) for _ in range(_OTHERS)]
    rng.shuffle(asked)
    answers = [_text(rng, topic) for _, topic in asked]
    places = [n for n, each in enumerate(asked) if each == wanted]
    turn = rng.randrange(needles)
    prefix = "".join(rng.choices(_SIGNS, k=10))
    kind, topic = wanted
    last = (
        f"Prepend {prefix} to the {_ORDER[turn]} {kind} about {topic}. "
        "Do not include any other text in your response."
    )
    return {
        "prompt": json.dumps(list(_messages(asked, answers, last))),
        "answer": prefix + answers[places[turn]],
        "random_string_to_prepend": prefix,
        "n_needles": needles,
        "desired_msg_index": 2 * places[turn] + 1,
        "total_messages": 2 * len(asked) + 1,
        "n_chars": sum(map(len, answers)),
    }


def _other(rng: random.Random, wanted: tuple[str, str]) -> tuple[str, str]:
    while (found := (rng.choice(_KINDS), rng.choice(_TOPICS))) == wanted:
        pass
    return found


def _text(rng: random.Random, topic: str) -> str:
    return " ".join([f"About {topic}.", *(filler(rng) for _ in range(3))])


def _messages(
    asked: list[tuple[str, str]], answers: list[str], last: str
) -> Iterator[dict[str, str]]:
    for (kind, topic), answer in zip(asked, answers, strict=True):
        yield {"role": "user", "content": f"Write a {kind} about {topic}."}
        yield {"role": "assistant", "content": answer}
    yield {"role": "user", "content": last}
