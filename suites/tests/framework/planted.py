"""Copies of the reference and of the parts that judge it, with a bug planted.

`kvproof_planted_<name>` mirrors `kvproof`: a module under it is made from the production source,
with a few lines of one module replaced, and imports the other copies instead of the originals.
Both can run side by side, and production code has no switches.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from kvproof.suites.faults.planting import Change, changed

PREFIX = "kvproof_planted_"
_COPIED = r"reference|kernels\.page_formats|harness\.adapters\.reference|suites\.reference"
_EVALUATION = r"eval|harness\.http|harness\.statistics"
_COPIED_FOR = {
    "kernels.block_transfer": r"kernels\.block_transfer",
    "eval": _EVALUATION,
    "harness.http": _EVALUATION,
    "harness.statistics": _EVALUATION,
}
"""Start of a fault's module -> what is copied for it as well: other suites use the original."""


PLANTED: dict[str, Change] = {}
"""Filled by `plant`."""


def plant(name: str, fault: Change) -> None:
    """Make `load(name, ...)` give copies with this fault."""
    PLANTED[name] = fault


def load(name: str, module: str) -> Any:
    """Import the copy of a module below `kvproof`."""
    return importlib.import_module(f"{PREFIX}{name}.{module}")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.SourceLoader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(PREFIX):
            return None
        folder = _origin(fullname).name == "__init__.py"
        return importlib.machinery.ModuleSpec(fullname, self, is_package=folder)

    def get_filename(self, fullname: str) -> str:
        return fullname

    def get_data(self, path: str | bytes) -> bytes:
        return _source(str(path)).encode()

    def is_package(self, fullname: str) -> bool:
        return _origin(fullname).name == "__init__.py"


def _origin(fullname: str) -> Path:
    """Return the production file; packages above all layers have none and are empty."""
    module = fullname.partition(".")[2]
    spec = importlib.util.find_spec(f"kvproof.{module}") if module else None
    return Path(spec.origin) if spec and spec.origin else Path("__init__.py")


def _source(fullname: str) -> str:
    package, _, module = fullname.partition(".")
    origin = _origin(fullname)
    source = origin.read_text() if origin.is_absolute() else ""
    fault = PLANTED[package.removeprefix(PREFIX)]
    if module == fault.module:
        source = changed(fault, source)
    more = [each for start, each in _COPIED_FOR.items() if fault.module.startswith(start)]
    return re.sub(rf"\bkvproof\.({'|'.join([_COPIED, *more])})\b", rf"{package}.\1", source)


sys.meta_path.append(_Finder())
