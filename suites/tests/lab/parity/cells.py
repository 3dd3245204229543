"""Results of the suite as serializable values."""

from __future__ import annotations

from importlib.metadata import packages_distributions
from typing import TypeAlias

import msgspec
import torch
import transformers

from kvproof.harness.errors import UsageError

KERNELS = ("causal_conv1d", "fla", "kernels", "mamba_ssm")
"""Packages that change the recurrences of transformers by being installed."""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One level, or one planted bug, of one family in one type."""

    family: str
    dtype: str
    level: str
    passed: bool
    difference: float | None = None
    """None: infinite, or there is nothing to compare."""
    limit: float = 0.0
    wrong: str = ""
    detail: str = ""
    seconds: float = 0.0
    bug: bool = False
    """A planted bug, which passes if it is found."""
    crashed: bool = False
    """It raised; `wrong` has the error."""


class Versions(msgspec.Struct, frozen=True):
    """The environment of the numbers."""

    torch: str
    transformers: str
    device: str
    kernels: tuple[str, ...]
    """Those of `KERNELS` that are installed."""


class Report(msgspec.Struct, frozen=True):
    """All cells of a run."""

    versions: Versions
    cells: list[Cell]
    seconds: float
    unfinished: tuple[str, ...] = ()
    """Families, with their types, that were given up."""

    @property
    def failed(self) -> list[Cell]:
        """Return the cells that did not pass."""
        return [cell for cell in self.cells if not cell.passed]


Row: TypeAlias = tuple[str, str]


def versions(device: str) -> Versions:
    """Return the installed versions. Raises UsageError for a missing device."""
    if device != "cpu" and not (device.startswith("cuda") and torch.cuda.is_available()):
        hint = f"torch {torch.__version__} sees no GPU here; --device cpu"
        raise UsageError(f"device {device!r} cannot be used", hint)
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else device
    packages = packages_distributions()  # a folder of that name on the path is no package
    installed = tuple(package for package in KERNELS if package in packages)
    return Versions(str(torch.__version__), transformers.__version__, name, installed)
