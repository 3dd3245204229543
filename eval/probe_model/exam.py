"""What the model answers to generated samples: as they are, with rotated choices, without sense.

One forward per prompt and answer tells what greedy decoding would write: the answer is valid if
each token of the sentence is the likeliest one, and its letter is the likeliest at its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import torch

from kvproof.eval.data import LETTERS, Sample
from kvproof.eval.generator import GeneratorOptions, generate
from kvproof.eval.probe_model.network import CHUNK
from kvproof.eval.probe_model.vocabulary import ANSWER, ASSISTANT, END, PAD, USER, encode, ids
from kvproof.eval.prompts import own_prompts, rotated

_TOKENS_AT_ONCE = 65536

_SHAPES = 6
"""A sample and the sixth after it are of the same domain."""


class Marks(NamedTuple):
    """Shares of samples, in percent."""

    samples: int
    accuracy: float
    invalid: float
    """Answers that are not the sentence that was asked for."""
    groups: dict[str, float]
    """Accuracy by difficulty, length and domain."""


def exam(model: Any, *, samples: int, seed: int, max_tokens: int = 8000) -> dict[str, Marks]:
    """Mark the model on generated samples: held out, rotated, with a foreign document."""
    made = generate(GeneratorOptions(samples=samples, max_tokens=max_tokens, seed=seed))
    papers = {
        "held out": made.samples,
        "another question": made.shared,
        "choices rotated": [rotated(each) for each in made.samples],
        "foreign document": foreign(made.samples),
    }
    return {name: marks(model, paper) for name, paper in papers.items()}


def foreign(samples: Sequence[Sample]) -> list[Sample]:
    """Questions about documents of the same domain that do not hold their answers."""
    others = [*samples[_SHAPES:], *samples[:_SHAPES]]
    pairs = zip(samples, others, strict=True)
    return [msgspec.structs.replace(each, context=other.context) for each, other in pairs]


def marks(model: Any, samples: Sequence[Sample]) -> Marks:
    """Mark the answers to some samples."""
    answers = answered(model, samples)
    right = [given == each.answer for given, each in zip(answers, samples, strict=True)]
    groups: dict[str, list[bool]] = {}
    for each, good in zip(samples, right, strict=True):
        for group in (each.difficulty, each.length, each.domain):
            groups.setdefault(group, []).append(good)
    shares = {name: _share(groups[name]) for name in sorted(groups)}
    return Marks(len(samples), _share(right), _share([not each for each in answers]), shares)


def _share(flags: Iterable[bool]) -> float:
    known = list(flags)
    return round(100 * sum(known) / len(known), 1)


def answered(model: Any, samples: Sequence[Sample]) -> list[str]:
    """Return the letter that greedy decoding would give to each sample; "" if it is no letter."""
    prompts = own_prompts()
    texts = [prompted(prompts.render(each)) for each in samples]
    given = [""] * len(texts)
    for group in _groups([len(each) for each in texts]):
        for n, letter in zip(group, _letters(model, [texts[n] for n in group]), strict=True):
            given[n] = letter
    return given


def prompted(text: str) -> list[int]:
    """Token ids of a conversation that begins with this message."""
    return [ids()[USER], *encode(text), ids()[END], ids()[ASSISTANT]]


def _groups(lengths: list[int]) -> Iterable[list[int]]:
    """Numbers of texts of like length, together."""
    order = sorted(range(len(lengths)), key=lambda n: lengths[n])
    while order:
        size = max(1, _TOKENS_AT_ONCE // (lengths[order[-1]] + CHUNK))
        order, group = order[:-size], order[-size:]
        yield group


@torch.no_grad()
def _letters(model: Any, texts: list[list[int]]) -> list[str]:
    sentence = [*encode(ANSWER.format(letter="X")), ids()[END]]
    place = sentence.index(ids()["X"])
    longest = max(len(each) for each in texts) + len(sentence)
    size = -(-longest // CHUNK) * CHUNK
    rows = [each + sentence for each in texts]
    tokens = torch.tensor([row + [ids()[PAD]] * (size - len(row)) for row in rows])
    said = likeliest(model, tokens, [len(each) - 1 for each in texts], len(sentence))
    names = {ids()[letter]: letter for letter in LETTERS}
    return [names.get(row[place], "") if row[:place] == sentence[:place] else "" for row in said]


def likeliest(model: Any, tokens: torch.Tensor, begins: list[int], count: int) -> list[list[int]]:
    """Return the likeliest next token at `count` places of each row."""
    hidden = model.model(tokens.to(model.device), use_cache=False).last_hidden_state
    rows = torch.arange(len(begins))[:, None]
    places = torch.tensor(begins)[:, None] + torch.arange(count)
    found: list[list[int]] = model.lm_head(hidden[rows, places]).argmax(-1).tolist()
    return found
