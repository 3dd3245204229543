"""The verdicts of a run in one sentence, failures first; one count a word."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from kvproof.harness.records.events import PropertyVerdict, Verdict
from kvproof.reports.values.text import listed, plural

RANKS: dict[Verdict, int] = {
    "fail": 0, "inconclusive": 1, "expected_failure": 2, "pass": 3, "unsupported": 4,
}  # fmt: skip
"""Verdict -> its place in a report, the worst first."""

_WORDS: dict[Verdict, str] = {
    "inconclusive": "inconclusive",
    "expected_failure": "expected to fail",
    "pass": "pass",
    "unsupported": "unsupported",
}


def worst(verdicts: Iterable[PropertyVerdict]) -> dict[str, Verdict]:
    """Return property -> its worst verdict on any target."""
    found: dict[str, Verdict] = {}
    for each in sorted(verdicts, key=lambda each: RANKS[each.verdict]):
        found.setdefault(each.property, each.verdict)
    return found


def leading(verdicts: Iterable[PropertyVerdict]) -> str:
    """Return the properties that fail, or else that are inconclusive; empty if none is."""
    found = worst(verdicts)
    lead = _lead(found)
    names = [name for name, verdict in found.items() if verdict == lead]
    if not names:
        return ""
    word = f"fail{'s' * (len(names) == 1)}" if lead == "fail" else lead
    return f"{plural(len(names), 'property')} {word}: {listed(names)}"


def others(verdicts: Iterable[PropertyVerdict]) -> str:
    """Return the numbers of the other verdicts, the worst first."""
    found = worst(verdicts)
    counts = Counter(verdict for verdict in found.values() if verdict != _lead(found))
    return ", ".join(f"{counts[name]:,} {word}" for name, word in _WORDS.items() if counts[name])


def _lead(found: Mapping[str, Verdict]) -> Verdict:
    return "fail" if "fail" in found.values() else "inconclusive"
