"""The parts of a report: one value per thing that a reader looks at."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Literal

from kvproof.harness.records.events import BenchSummary, Failure, PropertyVerdict

Tone = Literal["pass", "inconclusive", "fail"]

SECTIONS = {
    "B": "Blocks",
    "K": "Kernel blocks",
    "P": "Planning memory",
    "H": "Identity of a block",
    "A": "Who may use the cache",
    "T": "Prefix index",
    "M": "Media",
    "S": "Recurrent state",
    "X": "Groups and hit length",
    "G": "Transfers between tiers",
    "R": "Routed experts",
    "C": "Scheduling",
    "V": "Seeing what happens",
    "E": "Evaluation",
    "O": "Options",
    "W": "A whole engine",
}
"""Letter of a rule section -> its name, in the order of the matrix."""

MAIN_SUITE = "cache"
"""The suite that judges every target; what belongs to it needs no label."""

OUTCOMES: dict[str, tuple[str, Tone]] = {
    "pass": ("PASS", "pass"),
    "fail": ("FAIL", "fail"),
    "regression": ("REGRESSION", "fail"),
    "inconclusive": ("INCONCLUSIVE", "inconclusive"),
    "harness": ("HARNESS ERROR", "inconclusive"),
    "usage": ("STOPPED", "inconclusive"),
    "interrupted": ("INTERRUPTED", "inconclusive"),
    "killed": ("INCOMPLETE", "inconclusive"),
}
"""Verdict of a run -> the word shown and its colour class."""


@dataclass(frozen=True)
class Outcome:
    """The verdict of the whole run."""

    word: str
    tone: Tone
    sentence: str
    closed: bool
    """False: the run was killed, and what follows is what it recorded until then."""


@dataclass(frozen=True)
class Finding:
    """A failure, with every later one of the same fingerprint counted instead of repeated."""

    number: int
    failure: Failure
    times: int
    expected: str
    """Reason from the expected-failures file; empty for a failure that counts."""

    @property
    def anchor(self) -> str:
        """Fragment of the failure's block in the HTML."""
        return f"failure-{self.number}"


@dataclass(frozen=True)
class Row:
    """One property: its verdict per target, absent where it was not judged."""

    property: str
    sentence: str
    rules: tuple[str, ...]
    cells: dict[str, PropertyVerdict]
    part: str = ""
    """Suite that it belongs to, if that is a part of the reference."""


@dataclass(frozen=True)
class Section:
    """The properties of one rule section."""

    letter: str
    rows: tuple[Row, ...]

    @property
    def title(self) -> str:
        """Name of the section; the letter for one that the rules do not know."""
        return SECTIONS.get(self.letter, f"Section {self.letter}")

    def counts(self, target: str) -> Counter[str]:
        """Verdict -> properties, `not_run` for those without a verdict."""
        found = (row.cells.get(target) for row in self.rows)
        return Counter(cell.verdict if cell else "not_run" for cell in found)


@dataclass(frozen=True)
class Coverage:
    """All that was done to one target by its suites, or by one of them."""

    target: str
    suites: tuple[str, ...]
    test_cases: int
    seconds: float
    operations: Counter[str]
    situations: Counter[str]
    hit_blocks: Counter[str]
    missing: tuple[str, ...]
    """Required situations that some suite never reached."""

    @property
    def label(self) -> str:
        """Target, and the suite if it is one of the parts."""
        parts = [self.target, *(suite for suite in self.suites if suite != MAIN_SUITE)]
        return ", ".join(parts)


@dataclass(frozen=True)
class BenchGroup:
    """The targets that did the same work."""

    workload: str
    block_size: int
    num_blocks: int
    case: str
    entries: tuple[BenchSummary, ...]

    @property
    def title(self) -> str:
        """The workload, and the groups of layers if there is more than full attention."""
        groups = self.entries[0].groups
        return f"{self.workload}, groups {groups}" if groups else self.workload


def evidence_anchor(target: str, name: str) -> str:
    """Fragment of the evidence for one cell of the matrix."""
    return f"{_slug(target)}--{_slug(name)}"


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")
