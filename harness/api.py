"""The names that scripts about targets need: records, operations, `open_target`, `Session`.

Generated scripts import only this module, or `kvproof.suites.play`; its names stay.
"""

from __future__ import annotations

from kvproof.harness.contract.operations import (
    Admit,
    Cancel,
    Complete,
    Evict,
    Experts,
    Extend,
    Finish,
    Lookup,
    Pin,
    Preempt,
    ReadBatch,
    Reset,
    Unpin,
)
from kvproof.harness.contract.profile import Profile
from kvproof.harness.contract.target import (
    Batch,
    CacheEvent,
    Completed,
    Evicted,
    Group,
    HitStatistics,
    Inspection,
    Namespace,
    Refused,
    Released,
    Request,
    Scheduled,
    Span,
    StateUse,
    Target,
    TargetConfig,
    Usage,
)
from kvproof.harness.errors import TargetDied, UsageError
from kvproof.harness.isolation.registry import open_target
from kvproof.harness.oracle.violation import Violation
from kvproof.harness.reproduce.session_play import rerun
from kvproof.harness.session import Session

__all__ = [
    "Admit",
    "Batch",
    "CacheEvent",
    "Cancel",
    "Complete",
    "Completed",
    "Evict",
    "Evicted",
    "Experts",
    "Extend",
    "Finish",
    "Group",
    "HitStatistics",
    "Inspection",
    "Lookup",
    "Namespace",
    "Pin",
    "Preempt",
    "Profile",
    "ReadBatch",
    "Refused",
    "Released",
    "Request",
    "Reset",
    "Scheduled",
    "Session",
    "Span",
    "StateUse",
    "Target",
    "TargetConfig",
    "TargetDied",
    "Unpin",
    "Usage",
    "UsageError",
    "Violation",
    "open_target",
    "rerun",
]
