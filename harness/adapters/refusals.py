"""Verbs and calls that an engine does not have, or refuses."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NoReturn, Protocol

from kvproof.harness.contract.profile import Profile
from kvproof.harness.contract.target import Inspection, Refused, Request, TargetConfig, Usage
from kvproof.harness.errors import UnsupportedVerb


class Profiled(Protocol):
    """A target, as its profile describes it."""

    profile: Profile


def off(verb: str, capability: str = "") -> Callable[..., Any]:
    """Return a verb that raises UnsupportedVerb with the profile's reason; its name is the default.

    `capability` names the reason in `Profile.unsupported`.
    """

    def refuse(self: Profiled, *_: object, **__: object) -> NoReturn:
        raise UnsupportedVerb(verb, self.profile.unsupported[capability or verb])

    return refuse


def problem(request: Request, admitted: Collection[str]) -> str:
    """Return the problem for which every engine refuses an admission, else empty."""
    if not request.tokens:
        return "the prompt is empty"
    return f"request {request.id!r} is running already" if request.id in admitted else ""


def refused_at_arrival(
    request: Request, admitted: Collection[str], *, size: int, total: int, unit: str
) -> Refused | None:
    """Refuse as the engine does before scheduling; the pool has `total` times `size` tokens.

    `unit`: the engine's word for blocks.
    """
    if invalid := problem(request, admitted):
        return Refused("invalid", detail=invalid)
    needed = -(-len(request.tokens) // size)
    if needed > total:
        return Refused("never_fits", needed, total, f"{needed} {unit}, the pool has {total}")
    return None


def check_kernel_size(config: TargetConfig, reason: str) -> None:
    """Raise ValueError for kernel blocks of another size."""
    if config.kernel_size != config.block_size:
        raise ValueError(f"kernel_block_size {config.kernel_size}: {reason}")


class WithoutBlocks:
    """A target that manages no blocks: all verbs are off, only component suites run."""

    def __init__(self, profile: Profile) -> None:
        """Take a profile with `blocks` off, and why."""
        self.profile = profile

    admit = off("admit", "blocks")
    extend = off("extend", "blocks")
    complete = off("complete", "blocks")
    experts = off("experts", "blocks")
    finish = off("finish", "blocks")
    cancel = off("cancel", "blocks")
    preempt = off("preempt", "blocks")
    pin = off("pin", "blocks")
    unpin = off("unpin", "blocks")
    evict = off("evict", "blocks")
    reset = off("reset", "blocks")
    lookup = off("lookup", "blocks")
    batch = off("batch", "blocks")

    def inspect(self) -> Inspection:
        """No block is there."""
        return Inspection(Usage(0, 0, 0, 0))

    def close(self) -> None:
        """Resources of the component suites end with the process."""
