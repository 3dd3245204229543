"""Tokenizer of the generated documents: one token per word, bytes for everything else.

It is lossless: a word includes the space before it, as in other byte-level vocabularies. The fast
encoding here is for training; `tokenizer_of` writes an equal one for transformers.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from kvproof.eval.benchmark.fact_base import draw_facts
from kvproof.eval.benchmark.prompts import own_prompts
from kvproof.eval.benchmark.shapes import SHAPES
from kvproof.eval.benchmark.words import FIRST, PEOPLE, PLACES, SECOND, SIDES

PAD, END, USER, ASSISTANT, SYSTEM = "<|pad|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"
SPECIAL = (PAD, END, USER, ASSISTANT, SYSTEM)
"""The first ids, in this order."""

CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

_FAST = re.compile(r" ?[A-Za-z]+| ?[0-9]| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+")
_UNICODE = r" ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

_DOCUMENTS = 400
"""Documents that are read to collect the words and signs around the names."""

ANSWER = "The correct answer is ({letter})"


def pieces(text: str) -> list[str]:
    """Split ASCII text into the pieces that are tokens if the vocabulary has them."""
    return _FAST.findall(text)


@cache
def byte_letters() -> tuple[str, ...]:
    """Return the printable character of every byte, as in byte-level tokenizers."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [n for n in range(256) if n not in shown]
    stand_in = {n: chr(n) for n in shown} | {n: chr(256 + k) for k, n in enumerate(hidden)}
    return tuple(stand_in[n] for n in range(256))


@cache
def words() -> tuple[str, ...]:
    """Return the vocabulary: special tokens, single bytes, words of documents and prompts."""
    letters = byte_letters()
    known = {_shown(piece) for piece in _seen()}
    return (*SPECIAL, *letters, *sorted(known - set(letters)))


@cache
def ids() -> dict[str, int]:
    """Token id by text; single bytes only if they are ASCII."""
    back = {letter: chr(n) for n, letter in enumerate(byte_letters())}
    return {
        word if n < len(SPECIAL) else "".join(back[c] for c in word): n
        for n, word in enumerate(words())
    }


def encode(text: str) -> list[int]:
    """Encode generated text. Raises KeyError for an unknown word."""
    known = ids()
    return [known[piece] for piece in _FAST.findall(text)]


def _shown(piece: str) -> str:
    letters = byte_letters()
    return "".join(letters[n] for n in piece.encode())


def _seen() -> set[str]:
    names = [*FIRST, *SECOND, *PLACES, *SIDES, *PEOPLE]
    known = {form for name in names for form in (name, f" {name}")}
    for text in _texts():
        known.update(pieces(text))
    return known


def _texts() -> Iterable[str]:
    rng = random.Random("kvproof vocabulary")
    yield re.sub(r"\$\w+\$", "", own_prompts().template)
    yield ANSWER.format(letter="X")
    for number in range(_DOCUMENTS):
        shape = SHAPES[number % len(SHAPES)]
        base = draw_facts(rng, 12)
        yield shape.write(rng, base, 60)
        for form in (shape.easy, shape.hard):
            yield f" {form.format(thing=base.things[0])}\n"
    yield from (f"({letter})" for letter in "ABCD")


def tokenizer_of(folder: Path) -> Any:
    """Write the tokenizer and its chat template into a folder; return it."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(
        models.BPE(vocab={w: n for n, w in enumerate(words())}, merges=[], ignore_merges=True)
    )
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_UNICODE), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(SPECIAL))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token=PAD, eos_token=END, clean_up_tokenization_spaces=False
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)
    return fast
