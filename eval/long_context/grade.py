"""Grades of answers, by the public rules of RULER and MRCR.

An answer counts as right or wrong in the verdict, and a grade that changes counts as another
answer. Scores of OpenCompass's evaluators are compared with the means of ours.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Literal

import msgspec

Rule = Literal["all", "any", "copy"]
"""`all`: the share of words that stand in the text (RULER); `any`: one of them does (RULER's
questions); `copy`: likeness to a text after its prefix (MRCR)."""

RULES: dict[str, Rule] = {
    "RulerNiahEvaluator": "all",
    "RulerVtEvaluator": "all",
    "RulerCweEvaluator": "all",
    "RulerFweEvaluator": "all",
    "RulerQaEvaluator": "any",
    "MRCREvaluator": "copy",
}
"""Evaluators of OpenCompass -> their rule."""

COPIED = 0.95
"""Likeness from which a text is a copy; below it a grade has one digit."""

EXTRACTION = (
    "all words in the text, one of them, or a copy of at least 95 % likeness behind its prefix"
)


class Copy(msgspec.Struct, frozen=True):
    """A text to repeat, which begins with its prefix; OpenCompass's reference in JSON."""

    answer: str
    prefix: str


Reference = str | tuple[str, ...]
"""Words, or a `Copy` in JSON."""


def score(rule: Rule, text: str, reference: Reference) -> float:
    """Score of an answer, 0 to 1."""
    if rule == "copy":
        return _likeness(text, _copy(reference))
    found = _found(text, reference)
    return float(any(found)) if rule == "any" else sum(found) / len(found)


def grade(rule: Rule, text: str, reference: Reference) -> str | None:
    """Name the score; None for a text without the prefix."""
    if rule == "copy":
        wanted = _copy(reference)
        if not text.startswith(wanted.prefix):
            return None
        likeness = _likeness(text, wanted)
        return "copy" if likeness >= COPIED else f"{likeness:.1f}"
    found = _found(text, reference)
    return _counted(1, any(found)) if rule == "any" else _counted(len(found), sum(found))


def best(rule: Rule, reference: Reference) -> str:
    """Grade of a right answer."""
    if rule == "copy":
        return "copy"
    most = 1 if rule == "any" else len(_words(reference))
    return _counted(most, most)


def _counted(most: int, found: int) -> str:
    return f"{found:d} of {most}"


def _words(reference: Reference) -> Sequence[str]:
    return (reference,) if isinstance(reference, str) else reference


def _found(text: str, reference: Reference) -> list[bool]:
    return [word.lower() in text.lower() for word in _words(reference)]


def _copy(reference: Reference) -> Copy:
    return msgspec.json.decode(_words(reference)[0], type=Copy)


def _likeness(text: str, wanted: Copy) -> float:
    if not text.startswith(wanted.prefix):
        return 0.0
    cut = len(wanted.prefix)
    return difflib.SequenceMatcher(None, text[cut:], wanted.answer[cut:]).ratio()
