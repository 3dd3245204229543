"""Events of a run over planted faults: its plan, every fault, and the verdict."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from kvproof.harness.records.base import Event, Step

FaultOutcome: TypeAlias = Literal["killed", "survived", "equivalent", "left_out"]
"""A fault that is left out counts neither as found nor as a survivor."""


class Kill(msgspec.Struct, frozen=True, kw_only=True):
    """How a fault was found."""

    suite: str
    property: str
    oracle: str
    sentence: str
    cases: int
    """Test cases until the first that failed, those of suites that ran before included."""
    seconds: float
    """Until then, without shrinking."""
    size: int
    """Operations of the shrunk history."""
    fingerprint: str = ""
    op_log: str = ""
    """Path relative to the run directory."""
    script_path: str = ""
    history: list[Step] = []
    """The shrunk history."""


class FaultsStarted(Event, tag="faults_started", frozen=True, kw_only=True):
    """Which faults a run is about to plant; written again when it is resumed."""

    budget: str
    planned: int
    allowed: int
    """Faults that may survive this budget."""
    source: str = ""
    """Lines and seed of a drawn sample; empty for faults of the catalogue."""


class FaultJudged(Event, tag="fault", frozen=True, kw_only=True):
    """One fault, after the suites have run against it."""

    fault: str
    mechanism: str
    kind: str
    """`soundness`, `hits` or `accounting`."""
    bugs: list[str]
    """Ids of the known bugs that it is modelled on."""
    story: str
    module: str
    expected: str
    """The property that the catalogue names; empty for a blind fault, which any one may find."""
    outcome: FaultOutcome
    kill: Kill | None = None
    shadow: Kill | None = None
    """Kill of a soundness fault by a shadow memory, all other judges aside."""
    unshadowed: str = ""
    """Reason why no shadow memory can see a soundness fault."""
    reason: str = ""
    """Why it is equivalent or left out, or the suites that ran against a survivor."""
    cases: int = 0
    seconds: float = 0.0
    """Everything, shrinking included."""

    @property
    def unseen(self) -> bool:
        """Whether a shadow memory should have found it and did not."""
        wanted = self.kind == "soundness" and not self.unshadowed and self.expected != ""
        return wanted and self.outcome == "killed" and self.shadow is None


class FaultsConcluded(Event, tag="faults_concluded", frozen=True, kw_only=True):
    """The verdict on the suites."""

    verdict: Literal["pass", "fail", "inconclusive"]
    reason: str
    outcomes: dict[str, int]
