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
_MOVERS = "kernels.block_transfer"
"""Copied only for faults in it: the suites of kernels use the original."""
_IMPORT = re.compile(rf"\bkvproof\.({_COPIED})\b")
_IMPORT_OF_MOVERS = re.compile(rf"\bkvproof\.({_COPIED}|kernels\.block_transfer)\b")


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
    imports = _IMPORT_OF_MOVERS if fault.module.startswith(_MOVERS) else _IMPORT
    return imports.sub(rf"{package}.\1", source)


sys.meta_path.append(_Finder())
