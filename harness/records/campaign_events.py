"""Events of a campaign's work units."""

from __future__ import annotations

from kvproof.harness.records.base import Event


class UnitDone(Event, tag="unit_done", frozen=True, kw_only=True):
    """One work unit, recorded once; a campaign that is resumed does not run it again."""

    unit: str
    target: str
    suite: str
    seed: int
    attempt: int
    """1 for the first; more after a worker was lost."""
    where: str
    """Node and process that did it."""
    began: float = 0.0
    """Unix time at which this attempt began, by the clock of its node."""
    seconds: float
    cpu_seconds: float
    """CPU time of the process that explored, and of its target's worker unless it died."""
    test_cases: int = 0
    operations: dict[str, int] = {}
    situations: dict[str, int] = {}
    checks: dict[str, int] = {}
    hits: dict[str, int] = {}
    pairs: list[str] = []
    """Pairs of features, and of a feature and a situation, that no earlier unit has reached."""
    tolerated: dict[str, int] = {}
    """Known failures: mechanism -> histories; up to 0.13 by property."""
    ended: dict[str, int] = {}
    """Those of them that it ended."""
    unshrunk: dict[str, int] = {}
    """Failures that were only counted, not shrunk: property -> histories."""
    failed: list[str] = []
    """Properties that failed here, shrunk here or elsewhere."""
    shrunk: list[str] = []
    """Those whose smallest history was looked for here."""
    database: dict[str, int] = {}
    """Operations on the example database, and `unreachable`: those that failed."""
    died: dict[str, str] = {}
    """Kind and message of the target's death in it, if it died."""
    gave_up: str = ""
    """Why it has no result: every attempt lost its worker."""


class UnitLost(Event, tag="unit_lost", frozen=True, kw_only=True):
    """A worker went away with a unit, which is tried again."""

    unit: str
    attempt: int
    reason: str
