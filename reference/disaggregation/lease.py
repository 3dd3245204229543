"""How long both sides wait: for the last reader of a prompt, and for its last part (D2, D3)."""

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


class Arrivals:
    """The prompts that one decoding worker waits for."""

    def __init__(self) -> None:
        self._waiting: dict[int, set[int]] = {}

    def expect(self, prompt: int, senders: Iterable[int]) -> None:
        """Wait for the parts of some prefilling workers."""
        self._waiting[prompt] = set(senders)

    def came(self, prompt: int, sender: int) -> bool:
        """Note that a worker's part has come; returns whether all have, once and no more."""
        if sender not in self._waiting.get(prompt, ()):
            return False
        self._waiting[prompt].discard(sender)
        if self._waiting[prompt]:
            return False
        del self._waiting[prompt]
        return True
