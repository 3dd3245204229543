"""Copies of a connector that kvproof does not know, as torch carries them out on the caches.

On a device, work on a cache comes after the launches that were submitted earlier. So each call that
touches a cache completes them first; without such a call they stay queued. A class that takes a
cache by its address, or copies in a thread, is out of sight: launches then run before each hook.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.overrides import BaseTorchFunctionMode
from torch.utils._pytree import tree_iter

from kvproof.harness.whole_engine.device import ShadowDevice
from kvproof.harness.whole_engine.findings import IllegalAccess

_BY_ADDRESS = frozenset(
    ("data_ptr", "numpy", "untyped_storage", "storage", "__array__", "__dlpack__")
)


class Accesses(BaseTorchFunctionMode):  # type: ignore[misc] # the engine's torch, untyped here
    """Looks at each call of torch inside of `hook`."""

    def __init__(self) -> None:
        super().__init__()
        self._device: ShadowDevice | None = None
        self._caches: Sequence[Any] = ()
        self._places: frozenset[int] = frozenset()
        self._threads = threading.active_count()
        self._by_address = False

    def watch(self, caches: Iterable[Any], device: ShadowDevice) -> None:
        """Watch these tensors, which are views of an engine's caches."""
        self._caches, self._device = tuple(caches), device
        self._places = frozenset(map(_place, self._caches))

    @property
    def unseen(self) -> bool:
        """Whether it may copy without a call of torch in this thread."""
        return self._by_address or threading.active_count() > self._threads

    def hook(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a hook of the class that is watched while it runs."""
        called = taking(name, call)

        def watched(*given: Any, **more: Any) -> Any:
            if self.unseen:
                self.settle()
            with self:
                return called(*given, **more)

        return watched

    def settle(self) -> None:
        """Run every launch."""
        if self._device is not None:
            self._device.complete(self._device.submitted)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        touched = any(_place(each) in self._places for each in _tensors((args, kwargs)))
        if not touched or self._device is None:
            return super().__torch_function__(func, types, args, kwargs)
        self._by_address = self._by_address or getattr(func, "__name__", "") in _BY_ADDRESS
        self.settle()
        before = self._version()
        result = super().__torch_function__(func, types, args, kwargs)
        if self._version() != before:
            self._device.findings.saw("blocks are loaded from another tier")
        elif any(_place(each) not in self._places for each in _tensors(result)):
            self._device.findings.saw("blocks are stored in another tier")
        return result

    def _version(self) -> int:
        return sum(each._version for each in self._caches)


def taking(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a hook; one that does not take vLLM's arguments is a finding."""

    def called(*given: Any, **more: Any) -> Any:
        try:
            return call(*given, **more)
        except TypeError as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is None:
                raise IllegalAccess(f"{name} does not take vLLM's arguments: {error}") from error
            raise

    return called


def _tensors(values: Any) -> Iterator[Any]:
    return (each for each in tree_iter(values) if isinstance(each, torch.Tensor))


def _place(tensor: Any) -> int:
    """Return the address of its memory; 0: it has none of its own."""
    with torch._C.DisableTorchFunction():
        dense = tensor.layout is torch.strided and tensor.device.type == "cpu"
        return int(tensor.untyped_storage().data_ptr()) if dense else 0
