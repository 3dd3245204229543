"""A CUDA that is the CPU: streams and events of one queue, factories that allocate in memory.

An event ends with the launches of its step, or some steps later. Engine environment only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kvproof.harness.adapters.lmdeploy_engine.running import RUNNING

_FACTORIES = (
    *("arange", "empty", "empty_like", "empty_strided", "full", "full_like", "ones", "ones_like"),
    *("rand", "randint", "randn", "tensor", "zeros", "zeros_like"),
)
_BYTES = 8 << 30
"""Memory of the card, far more than any pool."""


class Event:
    """Ends with all launches before it."""

    def __init__(self, *_: object, **__: object) -> None:
        self._tick = 0

    def record(self, *_: object) -> None:
        """Stand for everything until now."""
        self._tick = RUNNING.launches.now() if RUNNING.launches else 0

    def query(self) -> bool:
        """Tell whether it has ended."""
        return RUNNING.launches is None or bool(RUNNING.launches.has_ended(self._tick))

    def wait(self, *_: object) -> None:
        """Order streams: there is one queue."""

    def synchronize(self) -> None:
        """Wait: launches are executed at once."""


class Stream:
    """The one queue."""

    cuda_stream = 0

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def wait_event(self, _: object) -> None:
        """Go on: all is in order."""

    def wait_stream(self, _: object) -> None:
        """Go on: all is in order."""

    def synchronize(self) -> None:
        """Go on: launches are executed at once."""

    def query(self) -> bool:
        """Tell that nothing is left."""
        return True


@contextmanager
def _on(_: object) -> Iterator[None]:
    yield


def _nothing(*_: object, **__: object) -> None:
    return None


def _itself(tensor: Any, *_: object, **__: object) -> Any:
    return tensor


class _Unrecorded:
    """Stands in for a range of torch's profiler, as a context and as a decorator."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __call__(self, function: Any) -> Any:
        return function

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


def _without_compiling(function: Any = None, **_: object) -> Any:
    return function if function is not None else lambda own: own


def install() -> None:
    """Put the functions that LMDeploy uses in place of torch's."""
    import torch
    import torch.profiler

    own = Stream()
    vars(torch.cuda).update(
        Stream=Stream,
        Event=Event,
        stream=_on,
        current_stream=lambda *_: own,
        default_stream=lambda *_: own,
        synchronize=_nothing,
        empty_cache=_nothing,
        set_device=_nothing,
        mem_get_info=lambda *_: (_BYTES, _BYTES),
        current_device=lambda: 0,
        device_count=lambda: 1,
    )
    vars(torch)["compile"] = _without_compiling
    vars(torch.profiler)["record_function"] = _Unrecorded
    for name in _FACTORIES:
        vars(torch)[name] = _here(getattr(torch, name))
    for name in ("cuda", "pin_memory", "record_stream"):
        setattr(torch.Tensor, name, _itself)
    torch.Tensor.to = _here(torch.Tensor.to)


def _here(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of torch whose devices are this one."""

    def here(*given: Any, **options: Any) -> Any:
        if "device" in options:
            options["device"] = _local(options["device"])
        options.pop("pin_memory", None)
        return function(*map(_local, given), **options)

    return here


def _local(value: Any) -> Any:
    name = value if isinstance(value, str) else getattr(value, "type", None)
    return "cpu" if isinstance(name, str) and name.startswith("cuda") else value
