"""Plant a fault: its module is imported with the changed lines.

Call this before the first import of the module, in a process of its own.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import linecache
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Protocol


class Change(Protocol):
    """A replacement of `old` by `new` in one module below `kvproof`."""

    @property
    def name(self) -> str:
        """The name in messages."""

    @property
    def module(self) -> str:
        """Below `kvproof`, dotted."""

    @property
    def old(self) -> str:
        """Lines that occur exactly once."""

    @property
    def new(self) -> str:
        """Their replacement."""


class Edit(NamedTuple):
    """Replaces `old`, which occurs once in this module of kvproof, by `new`."""

    module: str
    old: str
    new: str

    @property
    def name(self) -> str:
        """The name in messages."""
        return self.module


class Unfit(ValueError):
    """The catalogue does not fit the code any more."""


def changed(fault: Change, source: str) -> str:
    """Return `source` with the fault. Raises Unfit unless `old` occurs in it exactly once."""
    times = source.count(fault.old)
    if times != 1:
        raise Unfit(f"{fault.name}: {fault.old!r} occurs {times} times in {fault.module}, not once")
    return source.replace(fault.old, fault.new)


def origin(module: str) -> Path:
    """Return the file of a module below `kvproof`, without importing it. Raises Unfit."""
    layer, *rest = module.split(".")
    package = importlib.util.find_spec(f"kvproof.{layer}")
    folders = package.submodule_search_locations if package else None
    for folder in folders or ():
        path = Path(folder, *rest).with_suffix(".py")
        if path.is_file():
            return path
    raise Unfit(f"there is no module kvproof.{module}")


def plant(fault: Change) -> None:
    """Let the fault's module be imported with the fault. Raises Unfit."""
    name = f"kvproof.{fault.module}"
    if name in sys.modules:
        raise Unfit(f"{name} was imported before the fault {fault.name} was planted")
    path = origin(fault.module)
    sys.meta_path.insert(0, _Finder(name, path, changed(fault, path.read_text())))


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, path: Path, source: str) -> None:
        self._name = name
        self._loader = _Loader(name, path, source)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002 - as the protocol has it
        target: ModuleType | None = None,  # noqa: ARG002 - as above
    ) -> importlib.machinery.ModuleSpec | None:
        """Find that module, and no other."""
        if fullname != self._name:
            return None
        return importlib.util.spec_from_file_location(fullname, loader=self._loader)


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads the changed source under the original's file name."""

    def __init__(self, name: str, path: Path, source: str) -> None:
        super().__init__(name, str(path))
        self._source = source
        # Triton and tracebacks look source up by file; None: it is not compared with the file's
        linecache.cache[str(path)] = (
            len(source),
            None,
            source.splitlines(keepends=True),
            str(path),
        )

    def get_data(self, path: str) -> bytes:  # noqa: ARG002 - there is one source
        """Return the changed source."""
        return self._source.encode()

    def path_stats(self, path: str) -> Mapping[str, Any]:
        """Neither read nor write compiled files: they are the original's. Raises OSError."""
        raise OSError(path)
