"""Plant a fault: from now on its module is imported with the changed lines.

To be called before the module is first imported, in a process that does nothing else.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from kvproof.suites.faults.catalogue import Fault


class Unfit(ValueError):
    """The catalogue and the code have grown apart."""


def changed(fault: Fault, source: str) -> str:
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


def plant(fault: Fault) -> None:
    """Let the fault's module be imported with the fault. Raises Unfit."""
    name = f"kvproof.{fault.module}"
    if name in sys.modules:
        raise Unfit(f"{name} was imported before the fault {fault.name} was planted")
    path = origin(fault.module)
    sys.meta_path.insert(0, _Finder(name, path, changed(fault, path.read_text())))


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.SourceLoader):
    """Finds one module, with a source of its own."""

    def __init__(self, name: str, path: Path, source: str) -> None:
        self._name, self._path, self._source = name, path, source

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002 - as the protocol has it
        target: ModuleType | None = None,  # noqa: ARG002 - as above
    ) -> importlib.machinery.ModuleSpec | None:
        """Find that module, and no other."""
        if fullname != self._name:
            return None
        return importlib.util.spec_from_file_location(fullname, self._path, loader=self)

    def get_filename(self, fullname: str) -> str:  # noqa: ARG002 - as the protocol has it
        """Return where the original is, which tracebacks then show."""
        return str(self._path)

    def get_data(self, path: str | bytes) -> bytes:  # noqa: ARG002 - as the protocol has it
        """Return the changed source."""
        return self._source.encode()

    def get_source(self, fullname: str) -> str:  # noqa: ARG002 - as the protocol has it
        """Return the changed source: Triton compiles what it reads here."""
        return self._source
