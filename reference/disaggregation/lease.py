"""How long a prefilling worker keeps a prompt's blocks: until the last reader is done (D3)."""

from __future__ import annotations

from collections.abc import Iterable


class Leases:
    """The prompts that one prefilling worker keeps for others."""

    def __init__(self) -> None:
        self._waiting: dict[int, set[int]] = {}

    def keep(self, prompt: int, readers: Iterable[int]) -> None:
        """Keep a prompt for some decoding workers. Raises ValueError if there are none."""
        waiting = set(readers)
        if not waiting:
            raise ValueError(f"nobody reads prompt {prompt}")
        self._waiting[prompt] = waiting

    def done(self, prompt: int, reader: int) -> bool:
        """Note that a worker is done; returns whether the blocks are free now: once, and no more.

        A second call for one worker changes nothing, nor does one for a prompt that is not kept.
        """
        if prompt not in self._waiting:
            return False
        self._waiting[prompt].discard(reader)
        if self._waiting[prompt]:
            return False
        del self._waiting[prompt]
        return True
