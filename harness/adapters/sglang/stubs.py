"""Empty modules for packages that SGLang imports and its cache manager never calls.

Their wheels need CUDA or are larger than all the rest. Installed packages are used as they are.
Engine environment only.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

NAMES = ("torchvision", "sgl_kernel", "triton", "IPython", "compressed_tensors", "gguf")
"""Top-level modules that may be missing."""


class _Empty(ModuleType):
    """A module that has every attribute; each is such a module again, and a decorator."""

    __path__: list[str] = []  # noqa: RUF012 - as the import system reads it

    def __getattr__(self, name: str) -> _Empty:
        if name.startswith("__") or name == "get_current_target":  # Triton's: there is no GPU
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


def install(more: Sequence[str] = ()) -> tuple[str, ...]:
    """Put empty modules in place of missing packages, of `more` too; returns their names.

    Torch and transformers look some of them up and keep the result: they are imported first.
    Without Dynamo, decorated functions stay as they are.
    """
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    missing = tuple(name for name in (*NAMES, *more) if importlib.util.find_spec(name) is None)
    importlib.import_module("torch.utils.flop_counter")
    importlib.import_module("transformers.utils.import_utils").is_torchvision_available()
    sys.meta_path.insert(0, _Finder(missing))
    return missing


class _OneOnCpu:
    """Replaces a Triton kernel of the paged allocator, for a batch of one request.

    Older releases launch it on every device. It takes the rest of the last page, then pages from
    the front of the free list.
    """

    def __init__(self, *, decode: bool) -> None:
        self._decode = decode

    def __getitem__(self, _: object) -> Callable[..., None]:
        return self._one if self._decode else self._several

    def _one(self, stops: Any, last: Any, free: Any, out: Any, _: int, page: int) -> None:
        self._several(stops - 1, stops, last, free, out, _, page)

    def _several(
        self, starts: Any, stops: Any, last: Any, free: Any, out: Any, _: int, page: int
    ) -> None:
        start, stop = int(starts[0]), int(stops[0])
        first = start // page
        pages = [int(last[0]) // page] * (start % page > 0) + free.tolist()
        for index, position in enumerate(range(start, stop)):
            place = position // page - first
            if place < len(pages):  # the caller looks afterwards whether there were enough
                out[index] = pages[place] * page + position % page


def without_image_processors() -> None:
    """Let releases register image processors without torchvision; their package comes first."""
    importlib.import_module("sglang")
    transformers: Any = importlib.import_module("transformers")
    transformers.AutoImageProcessor = _Empty("transformers.AutoImageProcessor")


def allocate_on_cpu() -> None:
    """Put plain code where the paged allocator of older releases launches Triton kernels."""
    module = importlib.import_module("sglang.srt.mem_cache.allocator.paged")
    for name in ("alloc_extend_kernel", "alloc_decode_kernel"):
        assert hasattr(module, name), f"the paged allocator has no {name}"
        setattr(module, name, _OneOnCpu(decode="decode" in name))
