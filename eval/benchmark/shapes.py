"""The six domains of LongBench v2: templates of documents and questions about a fact base."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from kvproof.eval.benchmark.data import DOMAINS, Difficulty
from kvproof.eval.benchmark.words import filler
from kvproof.eval.benchmark.world import World, parts, scattered

Writer = Callable[[random.Random, World, int], str]
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


def _sites(world: World, form: str) -> list[str]:
    pairs = zip(world.things, world.sites, strict=True)
    return [form.format(thing=thing, site=site) for thing, site in pairs]


def _keepers(world: World, form: str) -> list[str]:
    pairs = zip(world.things, world.keepers, strict=True)
    return [form.format(thing=thing, keeper=keeper) for thing, keeper in pairs]


def _desks(world: World, form: str) -> list[str]:
    pairs = zip(world.keepers, world.desks, strict=True)
    return [form.format(keeper=keeper, desk=desk) for keeper, desk in pairs]


def _report(rng: random.Random, world: World, fill: int) -> str:
    facts = [
        *_sites(world, "The {thing} is stored in the {site}."),
        *_keepers(world, _REPORT_KEPT),
        *_desks(world, "{keeper} works in the {desk}."),
    ]
    lines = scattered(rng, facts, fill)
    paragraphs = [" ".join(piece) for piece in parts(lines, 6)]
    return "\n\n".join([f"Report of the {world.title} house.", *paragraphs])


def _folder(rng: random.Random, world: World, fill: int) -> str:
    stored = scattered(rng, _sites(world, "Inventory: the {thing} lies in the {site}."), fill // 3)
    kept = scattered(rng, _keepers(world, _FOLDER_KEPT), fill // 3)
    found = scattered(rng, _desks(world, "Staff note: ask for {keeper} in the {desk}."), fill // 3)
    pages = [*parts(stored, 5), *parts(kept, 5), *parts(found, 5)]
    rng.shuffle(pages)
    texts = [f"Document {n} ({world.title})\n" + "\n".join(p) for n, p in enumerate(pages, 1)]
    return "\n\n".join(texts)


def _examples(rng: random.Random, world: World, fill: int) -> str:
    facts = [
        *_sites(world, "Input: {thing} Label: {site}"),
        *_keepers(world, _EXAMPLES_KEPT),
        *_desks(world, "Family: {keeper} Group: {desk}"),
    ]
    rng.shuffle(facts)
    notes = [f"Remark: {filler(rng)}" for _ in range(fill)]
    lines = facts + notes
    rng.shuffle(lines)
    return "\n".join([f"Examples of the language of the {world.title}.", *lines])


def _dialogue(rng: random.Random, world: World, fill: int) -> str:
    facts = [
        *_sites(world, "I put the {thing} into the {site}."),
        *_keepers(world, _DIALOGUE_KEPT),
        *_desks(world, "You will find {keeper} in the {desk}."),
    ]
    turns = [
        f"{'Guest' if n % 2 else 'Host'}: {text}"
        for n, text in enumerate(scattered(rng, facts, fill))
    ]
    return "\n".join([f"Conversation about the {world.title}.", *turns])


def _code(rng: random.Random, world: World, fill: int) -> str:
    facts = [
        *_sites(world, 'SITE["{thing}"] = "{site}"'),
        *_keepers(world, _CODE_KEPT),
        *_desks(world, 'DESK["{keeper}"] = "{desk}"'),
    ]
    lines = facts + [f"# {filler(rng)}" for _ in range(fill)]
    rng.shuffle(lines)
    title = world.title.replace(" ", "_")
    files = [
        f"# file: {title}/part_{n}.py\n" + "\n".join(piece)
        for n, piece in enumerate(parts(lines, 12), 1)
    ]
    return "\n\n".join(files)


def _tables(rng: random.Random, world: World, fill: int) -> str:
    tables = [
        ("thing | site", _sites(world, "{thing} | {site}")),
        ("thing | keeper", _keepers(world, _TABLES_KEPT)),
        ("keeper | desk", _desks(world, "{keeper} | {desk}")),
    ]
    rng.shuffle(tables)
    texts = [f"Tables of the {world.title}."]
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
"""In the order of `DOMAINS`."""


def question(shape: Shape, difficulty: Difficulty, thing: str) -> str:
    """Ask for a thing."""
    return (shape.easy if difficulty == "easy" else shape.hard).format(thing=thing)
