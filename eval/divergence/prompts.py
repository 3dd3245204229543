"""Prompts whose hits end in several places: at the end, inside, and at a border of blocks."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, TypeAlias

from kvproof.eval.benchmark.prompts import own_prompts
from kvproof.eval.run.generator import GeneratorOptions, generate
from kvproof.harness.http.completion_client import Prompt

Text: TypeAlias = Literal["whole", "shared", "inside", "border", "begun", "continued", "elsewhere"]
"""A document with its question; with another question; cut at any place; cut at a border; the two
prompts of a scene; the first of them without the scene's adapter, or
with its images in the other order."""

TEXTS: tuple[Text, ...] = ("whole", "shared", "inside", "border")

BORDER = 128
"""Cuts of kind `border` are at a multiple of it or one token off: engines' blocks divide it."""


class Document(NamedTuple):
    """All prompts about one document; the first fills the cache for the others."""

    number: int
    prompts: dict[Text, Prompt]


_LEAST = 2000
"""Words and signs of the generator's smallest set; longer prompts lose their middle."""

Tokenize: TypeAlias = Callable[[str], Prompt]
"""Returns token ids, or the text itself where the server gives none."""


def documents(count: int, *, most_tokens: int, seed: int, tokenize: Tokenize) -> Iterator[Document]:
    """Draw documents; the same options give the same texts."""
    options = GeneratorOptions(samples=count, max_tokens=max(_LEAST, most_tokens), seed=seed)
    drawn, template = generate(options), own_prompts()
    for number, (first, second) in enumerate(zip(drawn.samples, drawn.shared, strict=True)):
        rng = random.Random(f"{seed} {number}")  # noqa: S311 - drawn to be repeated
        made = (tokenize(template.render(each)) for each in (first, second))
        whole, shared = (cut(each, most_tokens * _unit(each)) for each in made)
        yield Document(number, _prompts(rng, number, whole, shared))


def _unit(prompt: Prompt) -> int:
    """Characters of a token, about, for a server that gives no ids."""
    return 4 if isinstance(prompt, str) else 1


def cut(prompt: Prompt, most: int) -> Prompt:
    """Leave out the middle of a longer prompt: the first three quarters and the end stay."""
    tail = most // 4
    if len(prompt) <= most:
        return prompt
    if isinstance(prompt, str):
        return prompt[: most - tail] + prompt[-tail:]
    return prompt[: most - tail] + prompt[-tail:]


def _prompts(rng: random.Random, number: int, whole: Prompt, shared: Prompt) -> dict[Text, Prompt]:
    end = int(len(whole) * rng.uniform(0.4, 0.95))
    found: dict[Text, Prompt] = {"whole": whole, "shared": shared, "inside": whole[:end]}
    if isinstance(whole, tuple) and len(whole) > 2 * BORDER:
        blocks = rng.randrange(1, len(whole) // BORDER)
        found["border"] = whole[: blocks * BORDER + number % 3 - 1]
    return found
