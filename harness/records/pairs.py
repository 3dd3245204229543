"""Record of the pairs of features, and of features and situations, that a run has reached."""

from __future__ import annotations

import msgspec


class PairCoverage(msgspec.Struct, frozen=True, kw_only=True):
    """Pairs of a suite's table of factors on a target."""

    levels: dict[str, list[str]]
    """Factor -> its levels."""
    excluded: dict[str, str]
    """Combination of levels that is not drawn -> the reason."""
    excluded_pairs: int
    """Pairs of two levels that no configuration can have."""
    features: int
    """Pairs of two levels that can be reached."""
    situations: int
    """Pairs of a level and a situation that can be reached."""
    missing_features: list[str]
    """Pairs of two levels that were not reached, as `factor level + factor level`."""
    missing_situations: list[str]
    """Pairs that were not reached, as `factor level | situation`."""

    @property
    def reached(self) -> float:
        """Share of the pairs of two levels."""
        return 1 - len(self.missing_features) / self.features if self.features else 1.0

    @property
    def met(self) -> float:
        """Share of the pairs of a level and a situation."""
        return 1 - len(self.missing_situations) / self.situations if self.situations else 1.0

    def of(self, factor: str, level: str) -> int:
        """Return how many pairs of a level were not reached, those with situations included."""
        name = f"{factor} {level}"
        one = sum(name in each.split(" + ") for each in self.missing_features)
        return one + sum(each.split(" | ")[0] == name for each in self.missing_situations)
