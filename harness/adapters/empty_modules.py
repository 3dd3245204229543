"""Empty modules in place of packages that an engine imports and that nothing driven here calls.

Engine environment only.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class Empty(ModuleType):
    """A module that has every attribute; each is such a module again, and a decorator."""

    __path__: list[str] = []  # noqa: RUF012 - as the import system reads it

    def __getattr__(self, name: str) -> Empty:
        if name.startswith("__") or name == "get_current_target":  # Triton's: there is no GPU
            raise AttributeError(name)
        return Empty(f"{self.__name__}.{name}")

    def __call__(self, *_: object, **__: object) -> Empty:
        """Do nothing, as any function of it."""
        return self

    def __mro_entries__(self, _: object) -> tuple[type, ...]:
        return (object,)


class _Finder(MetaPathFinder, Loader):
    def __init__(self, names: Sequence[str]) -> None:
        self._names = frozenset(names)

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Answer for the missing packages and everything below them."""
        known = fullname.partition(".")[0] in self._names
        return ModuleSpec(fullname, self, is_package=True) if known else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """An empty module."""
        return Empty(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is executed."""


def fill_in(names: Sequence[str]) -> None:
    """Let these top-level packages, which are missing, be imported as empty modules."""
    sys.meta_path.insert(0, _Finder(names))
