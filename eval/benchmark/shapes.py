"""The six domains of LongBench v2: templates of documents and questions about a fact base."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from kvproof.eval.benchmark.data import DOMAINS, Difficulty
from kvproof.eval.benchmark.fact_base import FactBase, parts, scattered
from kvproof.eval.benchmark.words import filler


class Lines(NamedTuple):
    """Sentences of one document, by kind of fact."""

    sites: list[str]
    keepers: list[str]
    desks: list[str]

    @property
    def all(self) -> list[str]:
        """All of them, kind after kind."""
        return [*self.sites, *self.keepers, *self.desks]


Writer = Callable[[random.Random, str, Lines, int], str]
"""Writes a document with this title, these lines and so many filler lines."""


class Shape(NamedTuple):
    """One domain."""

    domain: str
    sub_domain: str
    writer: Writer
    site: str
    """Sentence of a document about the `{site}` of a `{thing}`."""
    kept: str
    """Sentence about the `{keeper}` of a `{thing}`."""
    desk: str
    """Sentence about the `{desk}` of a `{keeper}`."""
    easy: str
    """A question about `{thing}` that needs one fact."""
    hard: str
    """The same with two facts at different places."""

    def write(self, rng: random.Random, base: FactBase, fill: int) -> str:
        """Write a document with this many filler lines."""
        things, sites, keepers, desks = base.things, base.sites, base.keepers, base.desks
        lines = Lines(
            [self.site.format(thing=t, site=s) for t, s in zip(things, sites, strict=True)],
            [self.kept.format(thing=t, keeper=k) for t, k in zip(things, keepers, strict=True)],
            [self.desk.format(keeper=k, desk=d) for k, d in zip(keepers, desks, strict=True)],
        )
        return self.writer(rng, base.title, lines, fill)


def _report(rng: random.Random, title: str, lines: Lines, fill: int) -> str:
    paragraphs = [" ".join(piece) for piece in parts(scattered(rng, lines.all, fill), 6)]
    return "\n\n".join([f"Report of the {title} house.", *paragraphs])


def _folder(rng: random.Random, title: str, lines: Lines, fill: int) -> str:
    kinds = [scattered(rng, kind, fill // 3) for kind in lines]
    pages = [page for kind in kinds for page in parts(kind, 5)]
    rng.shuffle(pages)
    texts = [f"Document {n} ({title})\n" + "\n".join(p) for n, p in enumerate(pages, 1)]
    return "\n\n".join(texts)


def _examples(rng: random.Random, title: str, lines: Lines, fill: int) -> str:
    facts = lines.all
    rng.shuffle(facts)
    found = facts + [f"Remark: {filler(rng)}" for _ in range(fill)]
    rng.shuffle(found)
    return "\n".join([f"Examples of the language of the {title}.", *found])


def _dialogue(rng: random.Random, title: str, lines: Lines, fill: int) -> str:
    turns = enumerate(scattered(rng, lines.all, fill))
    said = [f"{'Guest' if n % 2 else 'Host'}: {text}" for n, text in turns]
    return "\n".join([f"Conversation about the {title}.", *said])


def _code(rng: random.Random, title: str, lines: Lines, fill: int) -> str:
    found = lines.all + [f"# {filler(rng)}" for _ in range(fill)]
    rng.shuffle(found)
    folder = title.replace(" ", "_")
    files = enumerate(parts(found, 12), 1)
    return "\n\n".join(f"# file: {folder}/part_{n}.py\n" + "\n".join(piece) for n, piece in files)


def _tables(rng: random.Random, title: str, lines: Lines, fill: int) -> str:
    heads = ("thing | site", "thing | keeper", "keeper | desk")
    tables = list(zip(heads, lines, strict=True))
    rng.shuffle(tables)
    texts = [f"Tables of the {title}."]
    for head, rows in tables:
        rng.shuffle(rows)
        noted = rows + [f"note | {filler(rng)}" for _ in range(fill // 3)]
        rng.shuffle(noted)
        texts.append("\n".join([head, *noted]))
    return "\n\n".join(texts)


_DOMAIN = tuple(DOMAINS)

SHAPES = (
    Shape(_DOMAIN[0], "Governmental", _report,
          "The {thing} is stored in the {site}.", "The {thing} is kept by {keeper}.",
          "{keeper} works in the {desk}.",
          "In which place is the {thing} stored?",
          "In which place does the keeper of the {thing} work?"),
    Shape(_DOMAIN[1], "Governmental", _folder,
          "Inventory: the {thing} lies in the {site}.",
          "Duty list: {keeper} looks after the {thing}.",
          "Staff note: ask for {keeper} in the {desk}.",
          "Where does the {thing} lie according to the documents?",
          "Where can one ask for the person who looks after the {thing}?"),
    Shape(_DOMAIN[2], "Many-shot learning", _examples,
          "Input: {thing} Label: {site}", "Input: {thing} Family: {keeper}",
          "Family: {keeper} Group: {desk}",
          "Which label has the input {thing}?",
          "Which group has the family of the input {thing}?"),
    Shape(_DOMAIN[3], "Dialogue history QA", _dialogue,
          "I put the {thing} into the {site}.",
          "{keeper} asked me for the {thing} and has it now.",
          "You will find {keeper} in the {desk}.",
          "Into which place was the {thing} put?",
          "In which place will one find the person who has the {thing}?"),
    Shape(_DOMAIN[4], "Code repo QA", _code,
          'SITE["{thing}"] = "{site}"', 'KEEPER["{thing}"] = "{keeper}"',
          'DESK["{keeper}"] = "{desk}"',
          'What is SITE["{thing}"]?',
          'What is DESK[KEEPER["{thing}"]]?'),
    Shape(_DOMAIN[5], "Table QA", _tables,
          "{thing} | {site}", "{thing} | {keeper}", "{keeper} | {desk}",
          "Which site has the thing {thing}?",
          "Which desk has the keeper of the thing {thing}?"),
)  # fmt: skip
"""Questions in the order of `DOMAINS`."""


def question(shape: Shape, difficulty: Difficulty, thing: str) -> str:
    """Ask for a thing."""
    return (shape.easy if difficulty == "easy" else shape.hard).format(thing=thing)
