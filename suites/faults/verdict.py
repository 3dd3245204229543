"""The event about one fault."""

from __future__ import annotations

from kvproof.harness.records.fault_events import FaultJudged, FaultOutcome, Kill
from kvproof.suites.faults.catalogue import PlantedFault, shadowed

_NOT_ASKED = "any property may find it"
CRASH = "crash"
"""The oracle of an unexpected exception or a dead process."""
HANG = "hang"
"""The oracle of a fault that hangs."""


def judged(
    fault: PlantedFault,
    kill: Kill | None,
    *,
    shadow: Kill | None = None,
    unshadowed: str = "",
    reason: str = "",
    left_out: bool = False,
    cases: int = 0,
    seconds: float = 0.0,
) -> FaultJudged:
    """Return the event about a fault that `kill` found; None: not found.

    With `left_out` it counts as neither, for the reason.
    """
    words = (reason, "" if kill or left_out else fault.survives)
    outcome: FaultOutcome = "left_out" if left_out else "killed" if kill else "survived"
    return FaultJudged(
        fault=fault.name,
        mechanism=fault.mechanism,
        kind=fault.kind,
        bugs=list(fault.bugs),
        story=fault.story,
        module=fault.module,
        expected=fault.property,
        outcome="equivalent" if fault.equivalent else outcome,
        kill=kill,
        shadow=shadow,
        unshadowed=unshadowed or fault.unshadowed or ("" if shadowed(fault) else _NOT_ASKED),
        reason=fault.equivalent or "; ".join(filter(None, words)),
        cases=cases,
        seconds=round(seconds, 3),
    )
