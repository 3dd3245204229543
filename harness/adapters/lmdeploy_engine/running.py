"""The engine that is being driven: LMDeploy constructs its model and events without our parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class Running:
    """Set when an engine was started."""

    launches: Any = None
    """The `Launches` that the model's forwards go to; None while the engine starts."""


RUNNING = Running()
