"""The verdicts of a run in a sentence that begins with what is wrong; one count a word."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from kvproof.harness.records.events import PropertyVerdict, Verdict
from kvproof.reports.values.text import listed, plural

RANKS: dict[Verdict, int] = {
    "fail": 0, "inconclusive": 1, "expected_failure": 2, "pass": 3, "unsupported": 4,
}  # fmt: skip
"""Verdict -> its place in a report, the worst first."""

_WORDS = {
    "inconclusive": "inconclusive",
    "expected_failure": "failing as expected",
    "pass": "passing",
    "unsupported": "unsupported",
}


def worst(verdicts: Iterable[PropertyVerdict]) -> dict[str, Verdict]:
    """Return property -> its worst verdict on any target."""
    found: dict[str, Verdict] = {}
    for each in sorted(verdicts, key=lambda each: RANKS[each.verdict]):
        found.setdefault(each.property, each.verdict)
    return found


def failing(verdicts: Iterable[PropertyVerdict]) -> str:
    """Return the properties that fail, with their number; empty if none does."""
    names = [name for name, verdict in worst(verdicts).items() if verdict == "fail"]
    if not names:
        return ""
    return f"{plural(len(names), 'property')} fail{'s' * (len(names) == 1)}: {listed(names)}"


def others(verdicts: Iterable[PropertyVerdict]) -> str:
    """Return the numbers of the other verdicts, the worst first."""
    counts = Counter(worst(verdicts).values())
    return ", ".join(f"{counts[name]:,} {word}" for name, word in _WORDS.items() if counts[name])
