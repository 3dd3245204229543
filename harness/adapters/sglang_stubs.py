"""Packages that SGLang imports and its cache manager never calls, as empty modules.

Their wheels need CUDA or are larger than all the rest. What is installed is used as it is.
Imported in the engine's environment only.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

NAMES = ("torchvision", "sgl_kernel", "triton", "IPython", "compressed_tensors", "gguf")
"""Top-level modules that may be missing."""


class _Empty(ModuleType):
    """A module that has every attribute; each is such a module again, and a decorator."""

    __path__: list[str] = []  # noqa: RUF012 - as the import system reads it

    def __getattr__(self, name: str) -> _Empty:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Empty(f"{self.__name__}.{name}")

    def __call__(self, *_: object, **__: object) -> _Empty:
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
        return _Empty(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is executed."""


def install() -> tuple[str, ...]:
    """Put empty modules where packages are missing; returns which.

    Torch and transformers look some of them up themselves and keep what they found: they come
    first. Without Dynamo, decorated functions stay as they are.
    """
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    missing = tuple(name for name in NAMES if importlib.util.find_spec(name) is None)
    importlib.import_module("torch.utils.flop_counter")
    importlib.import_module("transformers.utils.import_utils").is_torchvision_available()
    sys.meta_path.insert(0, _Finder(missing))
    return missing
