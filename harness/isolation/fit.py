"""Whether an adapter fits the engine that is installed; a refusal names the obstacles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvproof.harness.contract.differences import Difference
from kvproof.harness.errors import TargetDied, UsageError
from kvproof.harness.isolation.worker_handle import WorkerHandle


def differences(handle: WorkerHandle) -> list[Difference]:
    """Ask the engine's environment. Raises UsageError if its Python cannot run the adapter."""
    try:
        return handle.differences()
    except TargetDied as died:
        tail = died.log.strip().splitlines()[-6:]
        raise UsageError(
            "\n".join([f"{handle.name} cannot be compared with its adapter: {died}", *tail]),
            "the engine has to be importable there; numpy is all that kvproof needs beside it",
        ) from died


def refuse(name: str, found: Sequence[Difference]) -> None:
    """Raise UsageError with every difference that the adapter cannot live with, if there is one."""
    lines = list(blocking(found))
    if lines:
        raise UsageError(
            "\n".join([f"the adapter does not fit {name}; what is in the way:", *lines]),
            f"kvproof targets check {name} lists it again; CONTRIBUTING.md, Add an adapter",
        )


def blocking(found: Sequence[Difference]) -> Iterator[str]:
    """Describe each obstacle: the difference, then the next step."""
    for each in found:
        if each.blocks:
            yield f"  {each}: {each.advice}"
