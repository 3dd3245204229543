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
from pathlib import Path
from typing import Any

try:
    from kvproof.harness.adapters.empty_modules import Empty, fill_in
except ModuleNotFoundError:  # a plain script of a finding runs this file, without kvproof
    sys.path.append(str(Path(__file__).resolve().parents[1]))
    Empty, fill_in = (  # type: ignore[misc]  # the same two
        getattr(importlib.import_module("empty_modules"), name) for name in ("Empty", "fill_in")
    )

NAMES = ("torchvision", "sgl_kernel", "triton", "IPython", "compressed_tensors", "gguf")
"""Top-level modules that may be missing."""


def install(more: Sequence[str] = ()) -> tuple[str, ...]:
    """Put empty modules in place of missing packages, of `more` too; returns their names.

    Torch and transformers look some of them up and keep the result: they are imported first.
    Without Dynamo, decorated functions stay as they are.
    """
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    missing = tuple(name for name in (*NAMES, *more) if importlib.util.find_spec(name) is None)
    importlib.import_module("torch.utils.flop_counter")
    importlib.import_module("transformers.utils.import_utils").is_torchvision_available()
    fill_in(missing)
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
    transformers.AutoImageProcessor = Empty("transformers.AutoImageProcessor")


def allocate_on_cpu() -> None:
    """Put plain code where the paged allocator of older releases launches Triton kernels."""
    module = importlib.import_module("sglang.srt.mem_cache.allocator.paged")
    for name in ("alloc_extend_kernel", "alloc_decode_kernel"):
        assert hasattr(module, name), f"the paged allocator has no {name}"
        setattr(module, name, _OneOnCpu(decode="decode" in name))
