"""NIXL for workers of one process: transfers are done when they start."""

from __future__ import annotations

import ctypes

from kvproof.harness.adapters.vllm_engine.nixl.agent import Agent


class DirectAgent(Agent):
    """Copies at once, and notes the agents from which it has read, or to which it has written."""

    by_name: dict[str, DirectAgent] = {}  # noqa: RUF012 - emptied for each pair

    def __init__(self, name: str, config: object = None) -> None:
        super().__init__(name, config)
        self.reached: set[str] = set()
        self._messages: dict[str, list[bytes]] = {}
        DirectAgent.by_name[name] = self

    def transfer(self, number: int) -> str:
        """Copy, descriptor by descriptor. Raises ValueError where two of a pair differ in size."""
        handle = self._handles[number]
        for mine, theirs in zip(handle.local, handle.remote, strict=True):
            if mine[1] != theirs[1]:
                raise ValueError(f"{theirs[1]} bytes of a peer stand for {mine[1]} bytes")
            target, source = (mine, theirs) if handle.reads else (theirs, mine)
            ctypes.memmove(target[0], source[0], mine[1])
        if handle.local:
            self.reached.add(handle.peer)
        if handle.message:
            self.send_notif(handle.peer, handle.message)
        return "PROC"

    def check_xfer_state(self, number: int) -> str:
        """All have ended."""
        del number
        return "DONE"

    def release_xfer_handle(self, number: int) -> None:
        """Forget a transfer."""
        self._handles.pop(number, None)

    def send_notif(self, agent: str, notif_msg: bytes = b"") -> None:
        """Put a message into a peer's box."""
        DirectAgent.by_name[agent]._messages.setdefault(self.name, []).append(notif_msg)

    def get_new_notifs(self) -> dict[str, list[bytes]]:
        """Return the messages that have come, and forget them."""
        found, self._messages = self._messages, {}
        return found
