"""`kvproof` with one fault: in one module of the reference a few lines are others.

Run as a module, with module, old and new text before the arguments of the command.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType


class Changed(importlib.abc.MetaPathFinder, importlib.abc.SourceLoader):
    """Finds one module of kvproof, with `old` replaced by `new`."""

    def __init__(self, module: str, old: str, new: str) -> None:
        self.name, self.old, self.new = f"kvproof.{module}", old, new

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        found = importlib.util.find_spec(fullname)
        sys.meta_path.insert(0, self)
        assert found is not None
        assert found.origin is not None
        self.origin = Path(found.origin)
        return importlib.machinery.ModuleSpec(fullname, self)

    def get_filename(self, fullname: str) -> str:
        return str(self.origin)

    def get_data(self, path: str | bytes) -> bytes:
        source = self.origin.read_text()
        assert source.count(self.old) == 1, f"{self.name}: {self.old!r} must occur once"
        return source.replace(self.old, self.new).encode()


if __name__ == "__main__":
    _, planted_module, planted_old, planted_new, *arguments = sys.argv
    sys.meta_path.insert(0, Changed(planted_module, planted_old, planted_new))
    from kvproof.harness.cli import main

    main(arguments)
