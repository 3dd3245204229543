"""The engine that is being driven: SGLang constructs its model without our parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class Running:
    """Set when an engine was started."""

    launches: Any = None
    """The `Launches` that the model's forwards go to."""
    tier: Any = None
    """The `host_tier.Tier` whose tensors copies move; None: the engine has no host tier."""


RUNNING = Running()
