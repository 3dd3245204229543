"""Understands generated documents, as a perfect model would, and answers prompts about them."""

from __future__ import annotations

import re
from typing import NamedTuple

from kvproof.eval.benchmark.data import LETTERS
from kvproof.eval.benchmark.shapes import SHAPES

NAME = r"[a-z]+ [a-z]+"
FACTS = {
    "Single-Document QA": (
        rf"The ({NAME}) is stored in the ({NAME})\.",
        rf"The ({NAME}) is kept by (\w+)\.",
        rf"(\w+) works in the ({NAME})\.",
    ),
    "Multi-Document QA": (
        rf"Inventory: the ({NAME}) lies in the ({NAME})\.",
        rf"Duty list: (\w+) looks after the ({NAME})\.",
        rf"Staff note: ask for (\w+) in the ({NAME})\.",
    ),
    "Long In-context Learning": (
        rf"Input: ({NAME}) Label: ({NAME})\n?",
        rf"Input: ({NAME}) Family: (\w+)",
        rf"Family: (\w+) Group: ({NAME})",
    ),
    "Long-dialogue History Understanding": (
        rf"I put the ({NAME}) into the ({NAME})\.",
        rf"(\w+) asked me for the ({NAME}) and",
        rf"You will find (\w+) in the ({NAME})\.",
    ),
    "Code Repository Understanding": (
        rf'SITE\["({NAME})"\] = "({NAME})"',
        rf'KEEPER\["({NAME})"\] = "(\w+)"',
        rf'DESK\["(\w+)"\] = "({NAME})"',
    ),
    "Long Structured Data Understanding": (
        rf"(?m)^({NAME}) \| ({NAME})$",
        rf"(?m)^({NAME}) \| ([A-Z]\w+)$",
        rf"(?m)^([A-Z]\w+) \| ({NAME})$",
    ),
}


_PROMPT = re.compile(
    r"<(?:document|text)>(?: ?\n)(.*?) ?\n ?</(?:document|text)>.*"
    r"\n ?(?:Question|What is the correct answer to this question): (.*?) ?\n(?:.*?Choices: ?\n)?"
    r" ?\(A\) (.*?) ?\n ?\(B\) (.*?) ?\n ?\(C\) (.*?) ?\n ?\(D\) ([^\n]*?) ?\n",
    re.DOTALL,
)
"""Of our own prompt set, of the official ones, and of OpenCompass."""


class Asked(NamedTuple):
    """What a prompt of the project's own set asks."""

    document: str
    question: str
    choices: tuple[str, ...]


def parse(prompt: str) -> Asked:
    found = _PROMPT.search(prompt)
    assert found is not None, prompt[-500:]
    document, question, *choices = found.groups()
    return Asked(document, question, tuple(choices))


def read(document: str, question: str, choices: tuple[str, ...]) -> str | None:
    """The letter of what the document says, None if it does not say."""
    found = _found(document, question)
    return next((x for x, c in zip(LETTERS, choices, strict=True) if c == found), None)


def thing_of(question: str) -> tuple[str, str, bool]:
    """What is asked for, in which domain, and whether in two steps."""
    for shape in SHAPES:
        for hard, form in enumerate((shape.easy, shape.hard)):
            before, after = map(re.escape, form.split("{thing}"))
            if match := re.fullmatch(f"{before}({NAME}){after}", question):
                return match[1], shape.domain, bool(hard)
    raise AssertionError(f"no shape asks {question!r}")


def _found(document: str, question: str) -> str | None:
    thing, domain, hard = thing_of(question)
    site, keeper, desk = (re.findall(form, document) for form in FACTS[domain])
    if not hard:
        return dict(site).get(thing)
    keepers = {what: who for pair in keeper for who, what in [sorted(pair)]}
    return dict(desk).get(keepers.get(thing, ""))
