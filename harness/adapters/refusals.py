"""Verbs that an engine does not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from kvproof.harness.contract.profile import Profile
from kvproof.harness.contract.target import Inspection, Usage
from kvproof.harness.errors import UnsupportedVerb


def off(verb: str, reason: str) -> Callable[..., NoReturn]:
    """Return a verb that raises UnsupportedVerb with the profile's reason."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise UnsupportedVerb(verb, reason)

    return refuse


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
