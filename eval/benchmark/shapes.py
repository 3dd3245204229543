"""The six domains of LongBench v2: templates of documents and questions about a fact base."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from kvproof.eval.benchmark.data import DOMAINS, Difficulty
from kvproof.eval.benchmark.fact_base import FactBase, parts, scattered
from kvproof.eval.benchmark.words import filler

Writer = Callable[[random.Random, FactBase, int], str]
"""Writes a document with this many filler lines."""


class Shape(NamedTuple):
    """One domain."""

    domain: str
    sub_domain: str
    write: Writer
    kept: str
    """Sentence of a document about the `{keeper}` of a `{thing}`."""
    easy: str
    """A question about `{thing}` that needs one fact."""
    hard: str
    """The same with two facts at different places."""


_REPORT_KEPT = "The {thing} is kept by {keeper}."
_FOLDER_KEPT = "Duty list: {keeper} looks after the {thing}."
_EXAMPLES_KEPT = "Input: {thing} Family: {keeper}"
_DIALOGUE_KEPT = "{keeper} asked me for the {thing} and has it now."
_CODE_KEPT = 'KEEPER["{thing}"] = "{keeper}"'
_TABLES_KEPT = "{thing} | {keeper}"


def _sites(base: FactBase, form: str) -> list[str]:
    pairs = zip(base.things, base.sites, strict=True)
    return [form.format(thing=thing, site=site) for thing, site in pairs]


def _keepers(base: FactBase, form: str) -> list[str]:
    pairs = zip(base.things, base.keepers, strict=True)
    return [form.format(thing=thing, keeper=keeper) for thing, keeper in pairs]


def _desks(base: FactBase, form: str) -> list[str]:
    pairs = zip(base.keepers, base.desks, strict=True)
    return [form.format(keeper=keeper, desk=desk) for keeper, desk in pairs]


def _report(rng: random.Random, base: FactBase, fill: int) -> str:
    facts = [
        *_sites(base, "The {thing} is stored in the {site}."),
        *_keepers(base, _REPORT_KEPT),
        *_desks(base, "{keeper} works in the {desk}."),
    ]
    lines = scattered(rng, facts, fill)
    paragraphs = [" ".join(piece) for piece in parts(lines, 6)]
    return "\n\n".join([f"Report of the {base.title} house.", *paragraphs])


def _folder(rng: random.Random, base: FactBase, fill: int) -> str:
    stored = scattered(rng, _sites(base, "Inventory: the {thing} lies in the {site}."), fill // 3)
    kept = scattered(rng, _keepers(base, _FOLDER_KEPT), fill // 3)
    found = scattered(rng, _desks(base, "Staff note: ask for {keeper} in the {desk}."), fill // 3)
    pages = [*parts(stored, 5), *parts(kept, 5), *parts(found, 5)]
    rng.shuffle(pages)
    texts = [f"Document {n} ({base.title})\n" + "\n".join(p) for n, p in enumerate(pages, 1)]
    return "\n\n".join(texts)


def _examples(rng: random.Random, base: FactBase, fill: int) -> str:
    facts = [
        *_sites(base, "Input: {thing} Label: {site}"),
        *_keepers(base, _EXAMPLES_KEPT),
        *_desks(base, "Family: {keeper} Group: {desk}"),
    ]
    rng.shuffle(facts)
    notes = [f"Remark: {filler(rng)}" for _ in range(fill)]
    lines = facts + notes
    rng.shuffle(lines)
    return "\n".join([f"Examples of the language of the {base.title}.", *lines])


def _dialogue(rng: random.Random, base: FactBase, fill: int) -> str:
    facts = [
        *_sites(base, "I put the {thing} into the {site}."),
        *_keepers(base, _DIALOGUE_KEPT),
        *_desks(base, "You will find {keeper} in the {desk}."),
    ]
    turns = [
        f"{'Guest' if n % 2 else 'Host'}: {text}"
        for n, text in enumerate(scattered(rng, facts, fill))
    ]
    return "\n".join([f"Conversation about the {base.title}.", *turns])


def _code(rng: random.Random, base: FactBase, fill: int) -> str:
    facts = [
        *_sites(base, 'SITE["{thing}"] = "{site}"'),
        *_keepers(base, _CODE_KEPT),
        *_desks(base, 'DESK["{keeper}"] = "{desk}"'),
    ]
    lines = facts + [f"# {filler(rng)}" for _ in range(fill)]
    rng.shuffle(lines)
    title = base.title.replace(" ", "_")
    files = [
        f"# file: {title}/part_{n}.py\n" + "\n".join(piece)
        for n, piece in enumerate(parts(lines, 12), 1)
    ]
    return "\n\n".join(files)


def _tables(rng: random.Random, base: FactBase, fill: int) -> str:
    tables = [
        ("thing | site", _sites(base, "{thing} | {site}")),
        ("thing | keeper", _keepers(base, _TABLES_KEPT)),
        ("keeper | desk", _desks(base, "{keeper} | {desk}")),
    ]
    rng.shuffle(tables)
    texts = [f"Tables of the {base.title}."]
    for head, rows in tables:
        rng.shuffle(rows)
        noted = rows + [f"note | {filler(rng)}" for _ in range(fill // 3)]
        rng.shuffle(noted)
        texts.append("\n".join([head, *noted]))
    return "\n\n".join(texts)


_DOMAIN = tuple(DOMAINS)

SHAPES = (
    Shape(_DOMAIN[0], "Governmental", _report, _REPORT_KEPT,
          "In which place is the {thing} stored?",
          "In which place does the keeper of the {thing} work?"),
    Shape(_DOMAIN[1], "Governmental", _folder, _FOLDER_KEPT,
          "Where does the {thing} lie according to the documents?",
          "Where can one ask for the person who looks after the {thing}?"),
    Shape(_DOMAIN[2], "Many-shot learning", _examples, _EXAMPLES_KEPT,
          "Which label has the input {thing}?",
          "Which group has the family of the input {thing}?"),
    Shape(_DOMAIN[3], "Dialogue history QA", _dialogue, _DIALOGUE_KEPT,
          "Into which place was the {thing} put?",
          "In which place will one find the person who has the {thing}?"),
    Shape(_DOMAIN[4], "Code repo QA", _code, _CODE_KEPT,
          'What is SITE["{thing}"]?',
          'What is DESK[KEEPER["{thing}"]]?'),
    Shape(_DOMAIN[5], "Table QA", _tables, _TABLES_KEPT,
          "Which site has the thing {thing}?",
          "Which desk has the keeper of the thing {thing}?"),
)  # fmt: skip
"""Questions in the order of `DOMAINS`."""


def question(shape: Shape, difficulty: Difficulty, thing: str) -> str:
    """Ask for a thing."""
    return (shape.easy if difficulty == "easy" else shape.hard).format(thing=thing)
