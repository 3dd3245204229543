"""Evaluates the model on generated samples: original, with rotated choices, without evidence.

Answers are decoded greedily and read by the two official rules. A guess at the whole answer is
improved until the model repeats it: the fixed point equals token-by-token decoding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

import msgspec
import torch

from kvproof.eval.benchmark.data import LETTERS, Sample
from kvproof.eval.benchmark.extract import extract
from kvproof.eval.benchmark.prompts import own_prompts, rotated
from kvproof.eval.run.generator import GeneratorOptions, generate
from kvproof.suites.tests.lab.probe_model.network import CHUNK
from kvproof.suites.tests.lab.probe_model.synthetic_tasks import FOUND
from kvproof.suites.tests.lab.probe_model.vocabulary import (
    ANSWER,
    ASSISTANT,
    END,
    PAD,
    USER,
    encode,
    ids,
)

_TOKENS_AT_ONCE = 65536

NEW_TOKENS = 40
"""An answer takes at most 36 and its end."""

_SHAPES = 6
"""A sample and the sixth after it have the same domain."""


class Marks(NamedTuple):
    """Shares of samples, in percent."""

    samples: int
    accuracy: float
    invalid: float
    """Answers without a letter by either rule."""
    groups: dict[str, float]
    """Accuracy by difficulty, length and domain."""


def exam(model: Any, *, samples: int, seed: int, max_tokens: int = 8000) -> dict[str, Marks]:
    """Evaluate the model on generated samples: held out, rotated, with a foreign document."""
    made = generate(GeneratorOptions(samples=samples, max_tokens=max_tokens, seed=seed))
    papers = {
        "held out": made.samples,
        "another question": made.shared,
        "choices rotated": [rotated(each) for each in made.samples],
        "foreign document": foreign(made.samples),
    }
    return {name: marks(model, paper) for name, paper in papers.items()}


def foreign(samples: Sequence[Sample]) -> list[Sample]:
    """Questions about documents of the same domain that lack their answers."""
    others = [*samples[_SHAPES:], *samples[:_SHAPES]]
    pairs = zip(samples, others, strict=True)
    return [msgspec.structs.replace(each, context=other.context) for each, other in pairs]


def marks(model: Any, samples: Sequence[Sample]) -> Marks:
    """Score the answers to some samples."""
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
    """Return the model's letter for each sample; "" without one."""
    prompts = own_prompts()
    texts = [prompted(prompts.render(each)) for each in samples]
    given = [""] * len(texts)
    for group in _groups([len(each) for each in texts]):
        said = decoded(model, [texts[n] for n in group], [_draft(samples[n]) for n in group])
        for n, answer in zip(group, said, strict=True):
            given[n] = extract(_text(answer)) or ""
    return given


def _draft(sample: Sample) -> list[int]:
    """Words of an answer of this length; the model replaces them."""
    keeper = [] if sample.difficulty == "easy" else [*encode(":"), *encode(" Banor")]
    steps = [*encode("amber badger"), *keeper, *encode(f": northern alcove{FOUND}")]
    for letter, choice in zip(LETTERS, sample.choices, strict=True):
        steps += encode(f" ({letter}) {choice}")
    return steps + _sentence(LETTERS[-1])


def _sentence(letter: str) -> list[int]:
    return [*encode(FOUND), *encode(f" {ANSWER.format(letter=letter)}"), ids()[END]]


def _text(tokens: list[int]) -> str:
    """Decode an answer; tokens other than words and ASCII belong to no answer."""
    known = {number: text for text, number in ids().items()}
    return "".join(known.get(token, "?") for token in tokens if token != ids()[END])


def prompted(text: str) -> list[int]:
    """Token ids of a conversation that begins with this message."""
    return [ids()[USER], *encode(text), ids()[END], ids()[ASSISTANT]]


def _groups(lengths: list[int]) -> Iterable[list[int]]:
    order = sorted(range(len(lengths)), key=lambda n: lengths[n])
    while order:
        size = max(1, _TOKENS_AT_ONCE // (lengths[order[-1]] + CHUNK))
        order, group = order[:-size], order[-size:]
        yield group


def decoded(model: Any, texts: list[list[int]], drafts: list[list[int]]) -> list[list[int]]:
    """Continue texts greedily, up to the end token or `NEW_TOKENS`.

    Each round settles the tokens that the model repeats of its guess, and the next one. So there
    are as many rounds as wrong words in the draft, and at most `NEW_TOKENS`.
    """
    said = [_padded(each, NEW_TOKENS)[:NEW_TOKENS] for each in drafts]
    rows = list(range(len(texts)))
    for _ in range(NEW_TOKENS):
        found = likeliest(model, [texts[n] for n in rows], [said[n] for n in rows])
        moved = [_cut(mine) != _cut(said[n]) for n, mine in zip(rows, found, strict=True)]
        for n, mine in zip(rows, found, strict=True):
            said[n] = _mended(said[n], mine)
        rows = [n for n, open_ in zip(rows, moved, strict=True) if open_]
        if not rows:
            break
    return [_cut(each) for each in said]


def _mended(guess: list[int], found: list[int]) -> list[int]:
    """Correct the first token that the model predicts differently; later ones are not known yet.

    A recital that ends earlier than guessed continues with the sentence.
    """
    if guess == found:
        return guess
    pairs = zip(guess, found, strict=True)
    settled = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)) + 1
    stopped = found[settled - 1] == ids()[FOUND] != guess[settled - 1]
    rest = _padded(_sentence("A")[1:], len(guess)) if stopped else guess[settled:]
    return [*found[:settled], *rest][: len(guess)]


def _cut(answer: list[int]) -> list[int]:
    end = ids()[END]
    return answer[: answer.index(end) + 1] if end in answer else answer


def _padded(row: list[int], size: int) -> list[int]:
    return [*row, *[ids()[PAD]] * (size - len(row))]


def likeliest(model: Any, texts: list[list[int]], guesses: list[list[int]]) -> list[list[int]]:
    """Return, for each position of the guesses, the likeliest token after its prefix."""
    both = [text + guess for text, guess in zip(texts, guesses, strict=True)]
    size = -(-max(len(each) for each in both) // CHUNK) * CHUNK
    tokens = torch.tensor([_padded(each, size) for each in both])
    with torch.no_grad():
        hidden = model.model(tokens.to(model.device), use_cache=False).last_hidden_state
        begins = torch.tensor([len(each) - 1 for each in texts])[:, None]
        places = begins + torch.arange(len(guesses[0]))
        logits = model.lm_head(hidden[torch.arange(len(texts))[:, None], places])
    found: list[list[int]] = logits.argmax(-1).tolist()
    return found
