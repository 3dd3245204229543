"""Two ways to plant a fault: when its module is imported, and in the code of a running engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Protocol

from kvproof.harness.errors import TargetDied
from kvproof.suites.faults.catalogue import PlantedFault
from kvproof.suites.faults.planting import plant

if TYPE_CHECKING:  # nothing of the reference is imported before a fault is planted in it
    from kvproof.harness.isolation.handles import Handle


class Planter(Protocol):
    """Plants one fault at a time."""

    def planted(self, fault: PlantedFault) -> AbstractContextManager[Handle]:
        """Give a faulty target for a while. Raises Unfit, TargetDied."""


class AtImport:
    """Plants in the reference, in this process: there it stays."""

    @contextmanager
    def planted(self, fault: PlantedFault) -> Iterator[Handle]:
        """Let the module be imported with the fault, then open its target."""
        plant(fault)
        from kvproof.harness.isolation.registry import OwnTargets, open_handle

        with open_handle(fault.target, options=OwnTargets(in_process=True)) as handle:
            yield handle


class Live:
    """Plants in the process of an engine, which is kept for the next fault."""

    def __init__(self, handle: Handle) -> None:
        self.handle = handle
        self.used = False
        """Whether a fault was planted in the process before."""

    @contextmanager
    def planted(self, fault: PlantedFault) -> Iterator[Handle]:
        """Change the engine's functions, also in the processes that follow this one."""
        from kvproof.harness.whole_engine.planting import CLEAR, PLANT

        change = {"module": fault.module, "old": fault.old, "new": fault.new}
        ready = sorted(self.handle.profile.component_suites.values())
        try:
            with self.handle.prepared(PLANT, {"change": change, "ready": ready}):
                yield self.handle
        finally:
            self.used = True
            with suppress(TargetDied):  # the next process is sound
                self.handle.run_job(CLEAR, {}, timeout=60)

    def renew(self) -> None:
        """End the engine's process."""
        self.handle.close()
        self.used = False
