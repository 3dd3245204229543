"""The answer in a text, by the two rules of the official script and no other."""

from __future__ import annotations

import re
from typing import cast

from kvproof.eval.benchmark.data import Letter

_RULES = (
    re.compile(r"The correct answer is \(([A-D])\)"),
    re.compile(r"The correct answer is ([A-D])"),
)
"""The first one that is found anywhere decides."""

RULE = "official, strict"
"""Names the rule in records."""


def extract(text: str) -> Letter | None:
    """Return the letter that a text gives as its answer; None if it gives none: invalid."""
    plain = text.replace("*", "")
    found = next((match for rule in _RULES if (match := rule.search(plain))), None)
    return cast("Letter", found[1]) if found else None
