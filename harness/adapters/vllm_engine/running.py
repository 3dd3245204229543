"""The engine that is being started or driven: the plugin's classes cannot be passed its parts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kvproof.harness.contract.whole_engine import EngineConfig, EngineRequest
from kvproof.harness.whole_engine.findings import Findings


@dataclass
class Running:
    """Set before vLLM constructs a worker; vLLM itself constructs workers by class name."""

    config: EngineConfig = field(default_factory=EngineConfig)
    findings: Findings = field(default_factory=Findings)
    worker: Any = None
    """The last worker that was constructed."""
    owned: Any = None
    """Request -> block ids by group, as the engine's manager has them."""
    tier: Any = None
    """Host memory of our own connector, shared by its two halves."""
    given_up: dict[int, set[int]] = field(default_factory=dict)
    """Store of the OffloadingConnector -> blocks of it that its request has no more."""
    beginnings: dict[int, dict[int, int]] = field(default_factory=dict)
    """Store of the OffloadingConnector -> block -> slots of it that its key names."""
    requests: dict[str, EngineRequest] = field(default_factory=dict)

    def use(self, other: Running) -> None:
        """Take over the values of another engine of this process."""
        vars(self).update(vars(other))


RUNNING = Running()
