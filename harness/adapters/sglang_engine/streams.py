"""SGLang's streams and events over the shadow device.

The compute stream is the device's queue of launches. Where the engine orders its own writes after a
launch, by a stream or an event, the launch reads the request table first.
"""

from __future__ import annotations

from typing import Any

from kvproof.harness.adapters.sglang_engine.launches import Launches


class ScheduleStream:
    """The stream of the scheduler's own writes."""

    def __init__(self, launches: Launches) -> None:
        self._launches = launches

    def wait_stream(self, _: object) -> None:
        """Let all launches so far read before later writes."""
        self._launches.hold_tables()

    def synchronize(self) -> None:
        """Wait for nothing: the host's writes are made at once."""


class DeviceModule:
    """`torch.cpu`, with events that tell when a launch is done."""

    def __init__(self, module: Any, launches: Launches) -> None:
        self._module, self._launches = module, launches

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def Event(self, *_: Any, **__: Any) -> _Event:  # noqa: N802 - the engine's name
        """Return a new event."""
        return _Event(self._launches)


class _Event:
    def __init__(self, launches: Launches) -> None:
        self._launches, self._after = launches, 0

    def record(self, *_: Any, **__: Any) -> None:
        """Stand for all launches until now."""
        self._after = self._launches.device.submitted

    def synchronize(self) -> None:
        """Wait for them."""
        self._launches.complete(self._after)
