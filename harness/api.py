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
from kvproof.harness.contract.profile import (
    DraftProfile,
    ExpertProfile,
    HostTierProfile,
    InspectionProfile,
    LayerProfile,
    PolicyProfile,
    Profile,
    SpanProfile,
    StateProfile,
)
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
    Retained,
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
    "DraftProfile",
    "Evict",
    "Evicted",
    "ExpertProfile",
    "Experts",
    "Extend",
    "Finish",
    "Group",
    "HitStatistics",
    "HostTierProfile",
    "Inspection",
    "InspectionProfile",
    "LayerProfile",
    "Lookup",
    "Namespace",
    "Pin",
    "PolicyProfile",
    "Preempt",
    "Profile",
    "ReadBatch",
    "Refused",
    "Released",
    "Request",
    "Reset",
    "Retained",
    "Scheduled",
    "Session",
    "Span",
    "SpanProfile",
    "StateProfile",
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
