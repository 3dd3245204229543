"""A simulated device for SGLang's host tier, on a machine without one.

A stream queues its copies until a wait: a copy is made as late as the engine allows, and always at
the same point of a history. The stock kernels (`kernel`, `page_first`) for pages and states submit
such copies instead of moving bytes; host memory is plain memory. Engine environment only.
"""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

_SRT = "sglang.srt."
_WITH_STREAMS = ("managers.cache_controller", "mem_cache.l2_transfer")
"""Modules that take streams and events from `device_module`."""


class Copy(NamedTuple):
    """One launch of a kernel: slot by slot, to the host or from it."""

    to_host: bool
    memory: int
    """Address of the host's."""
    sources: tuple[int, ...]
    destinations: tuple[int, ...]


class Stream:
    """Copies in launch order; `made` is called with each one when it is made."""

    def __init__(self) -> None:
        self.made: list[Copy] = []
        self._waiting: deque[Copy] = deque()
        self._done = 0

    def submit(self, copy: Copy) -> None:
        """Launch a kernel."""
        self._waiting.append(copy)

    @property
    def waiting(self) -> tuple[Copy, ...]:
        """Copies that are not made yet."""
        return tuple(self._waiting)

    @property
    def end(self) -> int:
        """Number of the last copy that was submitted."""
        return self._done + len(self._waiting)

    def reached(self, place: int) -> bool:
        """Whether the first `place` copies are made."""
        return self._done >= place

    def run(self, place: int) -> None:
        """Make the first `place` copies."""
        while not self.reached(place):
            self.made.append(self._waiting.popleft())
            self._done += 1

    def wait_event(self, event: Event) -> None:
        """Order the later work of this stream after `event`."""
        event.synchronize()

    def wait_stream(self, other: Stream) -> None:
        """Order the later work of this stream after all of `other`."""
        other.run(other.end)

    def synchronize(self) -> None:
        """Wait for everything."""
        self.run(self.end)


class Event:
    """A place in a stream."""

    def __init__(self, *, enable_timing: bool = False) -> None:
        self.enable_timing = enable_timing
        self._stream, self._place = _COMPUTE, 0

    def record(self, stream: Stream | None = None) -> None:
        """Mark the end of the work submitted so far."""
        self._stream = stream or current_stream()
        self._place = self._stream.end

    def query(self) -> bool:
        """Whether the event has completed."""
        return self._stream.reached(self._place)

    def synchronize(self) -> None:
        """Wait for it."""
        self._stream.run(self._place)

    def wait(self, _: Stream | None = None) -> None:
        """Let a stream wait for it."""
        self.synchronize()

    def elapsed_time(self, _: Event) -> float:
        """No time passes."""
        return 0.0


_COMPUTE = Stream()
_current = [_COMPUTE]


def current_stream() -> Stream:
    """The one that kernels go to."""
    return _current[-1]


@contextmanager
def stream(chosen: Stream) -> Iterator[None]:
    """Let kernels go to `chosen`."""
    _current.append(chosen)
    try:
        yield
    finally:
        _current.pop()


class _Device:
    """The attributes that the engine looks up in `device_module`."""

    Stream = Stream
    Event = Event
    current_stream = staticmethod(current_stream)
    stream = staticmethod(stream)


def transfer_kv_all_layer_lf_pf(
    *, dst_k: Any, src_indices: Any, dst_indices: Any, **_: Any
) -> None:
    """Back pages up, all layers at once."""
    slots = tuple(src_indices.tolist()), tuple(dst_indices.tolist())
    current_stream().submit(Copy(True, dst_k.data_ptr(), *slots))  # noqa: FBT003 - a record


def transfer_kv_per_layer_pf_lf(
    *, src_k: Any, src_indices: Any, dst_indices: Any, **_: Any
) -> None:
    """Load pages back, one layer."""
    slots = tuple(src_indices.tolist()), tuple(dst_indices.tolist())
    current_stream().submit(Copy(False, src_k.data_ptr(), *slots))  # noqa: FBT003 - a record


def transfer_kv_mamba_lf_pf(*, dst: Any, src_indices: Any, dst_indices: Any, **_: Any) -> None:
    """Back one part of states up, all layers at once."""
    transfer_kv_all_layer_lf_pf(dst_k=dst, src_indices=src_indices, dst_indices=dst_indices)


def transfer_kv_mamba_pf_lf(*, src: Any, src_indices: Any, dst_indices: Any, **_: Any) -> None:
    """Load one part of states back, one layer."""
    transfer_kv_per_layer_pf_lf(src_k=src, src_indices=src_indices, dst_indices=dst_indices)


def _plain_memory(dims: Any, *, dtype: Any, **_: Any) -> Any:
    return importlib.import_module("torch").zeros(dims, dtype=dtype)


def install() -> None:
    """Put the stand-ins into the engine's modules, where it has no device of its own."""
    for name in _WITH_STREAMS:
        module: Any = importlib.import_module(_SRT + name)
        assert hasattr(module, "device_module"), f"{name} takes streams from somewhere else"
        module.device_module = _Device
    pools: Any = importlib.import_module(_SRT + "mem_cache.pool_host.mha")
    pools.transfer_kv_all_layer_lf_pf = transfer_kv_all_layer_lf_pf
    pools.transfer_kv_per_layer_pf_lf = transfer_kv_per_layer_pf_lf
    states: Any = importlib.import_module(_SRT + "mem_cache.pool_host.mamba")
    states.transfer_kv_mamba_lf_pf = transfer_kv_mamba_lf_pf
    states.transfer_kv_mamba_pf_lf = transfer_kv_mamba_pf_lf
    common = importlib.import_module(_SRT + "mem_cache.pool_host.common")
    common.ALLOC_MEMORY_FUNCS["cpu"] = _plain_memory
