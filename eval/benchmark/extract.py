"""Extracts the answer from a text by the two rules of the official script, and no other."""

from __future__ import annotations

import re
from typing import cast

from kvproof.eval.benchmark.data import Letter

_RULES = (
    re.compile(r"The correct answer is \(([A-D])\)"),
    re.compile(r"The correct answer is ([A-D])"),
)
"""The first one that matches anywhere decides."""

RULE = "official, strict"
"""Names the rule in records."""


def extract(text: str) -> Letter | None:
    """Return the letter of a text's answer; None (invalid) if there is none."""
    plain = text.replace("*", "")
    found = next((match for rule in _RULES if (match := rule.search(plain))), None)
    return cast("Letter", found[1]) if found else None
