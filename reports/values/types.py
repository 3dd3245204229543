"""The values that reports are made of."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Literal

from kvproof.harness.records.events import BenchSummary, Failure, PropertyVerdict
from kvproof.harness.records.pairs import PairCoverage
from kvproof.reports.values.text import percent, significant

Tone = Literal["pass", "inconclusive", "fail"]

SECTIONS = {
    "B": "Blocks",
    "K": "Kernel blocks",
    "P": "Planning memory",
    "H": "Identity of a block",
    "A": "Cache permissions",
    "T": "Prefix index",
    "M": "Media",
    "S": "Recurrent state",
    "X": "Groups and hit length",
    "G": "Transfers between tiers",
    "R": "Routed experts",
    "C": "Scheduling",
    "V": "Events and statistics",
    "E": "Evaluation",
    "O": "Options",
    "W": "A whole engine",
    "D": "Between engines, tiers and stores",
    "Q": "Pools that sleep and grow",
}
"""Letter of a rule section -> its name, in the order of the matrix."""

MAIN_SUITE = "cache"
"""The suite of every target; its names need no label."""

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
"""Verdict of a run -> its word and colour class."""


@dataclass(frozen=True)
class Outcome:
    """The verdict of the whole run."""

    word: str
    tone: Tone
    sentence: str
    closed: bool
    """False: the run was killed, and the report ends there."""


@dataclass(frozen=True)
class Finding:
    """A failure, with a count of later ones that have the same fingerprint."""

    number: int
    failure: Failure
    times: int
    expected: str
    """Reason from the expected-failures file; empty for an unexpected failure."""

    @property
    def anchor(self) -> str:
        """Fragment of the failure's section in the HTML."""
        return f"failure-{self.number}"


@dataclass(frozen=True)
class Row:
    """One property: its verdict per target, missing if not judged."""

    property: str
    sentence: str
    rules: tuple[str, ...]
    cells: dict[str, PropertyVerdict]
    part: str = ""
    """Component suite of the property; empty for the suite `cache`."""

    def is_unsupported(self) -> bool:
        """Whether no target supports it: reports fold such rows."""
        return all(cell.verdict == "unsupported" for cell in self.cells.values())


@dataclass(frozen=True)
class Section:
    """The properties of one rule section."""

    letter: str
    rows: tuple[Row, ...]

    @property
    def judged(self) -> list[Row]:
        """The rows that some target supports."""
        return [row for row in self.rows if not row.is_unsupported()]

    @property
    def title(self) -> str:
        """Name of the section; the letter if it is unknown."""
        return SECTIONS.get(self.letter, f"Section {self.letter}")

    def counts(self, target: str) -> Counter[str]:
        """Verdict -> properties, `not_run` for those without one."""
        found = (row.cells.get(target) for row in self.rows)
        return Counter(cell.verdict if cell else "not_run" for cell in found)


@dataclass(frozen=True)
class Coverage:
    """Coverage of one target by all of its suites, or by one."""

    target: str
    suites: tuple[str, ...]
    test_cases: int
    seconds: float
    operations: Counter[str]
    situations: Counter[str]
    hit_blocks: Counter[str]
    missing: tuple[str, ...]
    """Required situations that some suite never reached."""
    engine_seconds: float = 0.0
    pairs: PairCoverage | None = None
    """Pairs of features, of one suite with a table of factors."""

    @property
    def rate(self) -> str:
        """Test cases a second."""
        return significant(self.test_cases / self.seconds) if self.seconds else ""

    @property
    def engine_share(self) -> str:
        """Share of the time until the target's answers."""
        return percent(self.engine_seconds / self.seconds) if self.engine_seconds else ""

    @property
    def reused(self) -> str:
        """Share of admissions that reused blocks."""
        total = sum(self.hit_blocks.values())
        return percent(1 - self.hit_blocks.get("0", 0) / total) if total else ""

    @property
    def label(self) -> str:
        """Target, and the name of a component suite."""
        parts = [self.target, *(suite for suite in self.suites if suite != MAIN_SUITE)]
        return ", ".join(parts)


@dataclass(frozen=True)
class BenchGroup:
    """The targets of one workload, size and case."""

    workload: str
    block_size: int
    num_blocks: int
    case: str
    entries: tuple[BenchSummary, ...]

    @property
    def title(self) -> str:
        """Workload, and its layer groups if they are not one full group."""
        groups = self.entries[0].groups
        return f"{self.workload}, groups {groups}" if groups else self.workload


def evidence_anchor(target: str, name: str) -> str:
    """Fragment of the evidence for one cell of the matrix."""
    return f"{_slug(target)}--{_slug(name)}"


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")
