"""Verbs and calls that an engine does not have, or refuses."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NoReturn

from kvproof.harness.contract.profile import Profile
from kvproof.harness.contract.target import Inspection, Refused, Request, TargetConfig, Usage
from kvproof.harness.errors import UnsupportedVerb


def off(verb: str, reason: str) -> Callable[..., NoReturn]:
    """Return a verb that raises UnsupportedVerb with the profile's reason."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise UnsupportedVerb(verb, reason)

    return refuse


def running(
    requests: Mapping[str, Any], request_id: str, drafts: Sequence[int], profile: Profile
) -> Any:
    """Return the running request of an `extend`; Refused for an unknown id.

    Raises UnsupportedVerb for drafts.
    """
    if drafts:
        raise UnsupportedVerb("extend with drafts", profile.unsupported["drafts"])
    native = requests.get(request_id)
    if native is None:
        return Refused("invalid", detail=f"no running request {request_id!r}")
    return native


def plain_completion(profile: Profile, *, drafts: bool) -> None:
    """Raise UnsupportedVerb for a completion of drafts, or with rows that are not kept."""
    if drafts:
        raise UnsupportedVerb("complete with drafts", profile.unsupported["drafts"])


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


def _refused(verb: str) -> Callable[..., NoReturn]:
    def refuse(self: WithoutBlocks, *_: object, **__: object) -> NoReturn:
        raise UnsupportedVerb(verb, self.profile.unsupported["blocks"])

    return refuse


class WithoutBlocks:
    """A target that manages no blocks: all verbs are off, only component suites run."""

    def __init__(self, profile: Profile) -> None:
        """Take a profile with `blocks` off, and why."""
        self.profile = profile

    admit = _refused("admit")
    extend = _refused("extend")
    complete = _refused("complete")
    experts = _refused("experts")
    finish = _refused("finish")
    cancel = _refused("cancel")
    preempt = _refused("preempt")
    pin = _refused("pin")
    unpin = _refused("unpin")
    evict = _refused("evict")
    reset = _refused("reset")
    lookup = _refused("lookup")
    batch = _refused("batch")

    def inspect(self) -> Inspection:
        """No block is there."""
        return Inspection(Usage(0, 0, 0, 0))

    def close(self) -> None:
        """Resources of the component suites end with the process."""
