"""Pairs of features in words, and as rows of a table."""

from __future__ import annotations

from typing import NamedTuple

from kvproof.harness.records.pairs import PairCoverage
from kvproof.reports.values.text import percent


class LevelRow(NamedTuple):
    """One level of a factor."""

    factor: str
    level: str
    missing: int
    """Pairs of it that were not reached."""


def pairs_line(pairs: PairCoverage) -> str:
    """Return the coverage of pairs in one line."""
    return (
        f"pairs of features: {pairs.features - len(pairs.missing_features):,} of "
        f"{pairs.features:,} reached ({percent(pairs.reached)}), {pairs.excluded_pairs:,} "
        f"excluded; of a feature and a situation: "
        f"{pairs.situations - len(pairs.missing_situations):,} of {pairs.situations:,} "
        f"({percent(pairs.met)})"
    )


def level_rows(pairs: PairCoverage) -> list[LevelRow]:
    """Return a row for each level."""
    return [
        LevelRow(factor, level, pairs.of(factor, level))
        for factor, levels in pairs.levels.items()
        for level in levels
    ]
