"""Identity of a process, and the certainty that it is gone (G8); Linux."""

from __future__ import annotations

import os
import select
from contextlib import ExitStack
from pathlib import Path

from kvproof.reference.cache_server.messages import Process

_STARTED = 19
"""Field of /proc/<pid>/stat after the command: the start, in clock ticks after boot."""
_DESCRIPTORS = 24
"""Files of one ZeroMQ context with a socket, and some to spare."""


def this_process() -> Process:
    """Return the identity of this process."""
    pid = os.getpid()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return Process(pid, started(pid), boot, str(Path("/proc/self/ns/pid").readlink()))


def started(pid: int) -> int:
    """Return when a process started, in clock ticks after boot. Raises OSError."""
    stat = Path(f"/proc/{pid}/stat").read_bytes()
    return int(stat.rpartition(b")")[2].split()[_STARTED])


def same_host(one: Process, other: Process) -> bool:
    """Return whether two processes share a host and a PID namespace."""
    return (one.boot, one.space) == (other.boot, other.space)


def spare_descriptors() -> None:
    """Raise OSError unless ZeroMQ can open its files: it ends the process where it cannot."""
    with ExitStack() as opened:
        for _ in range(_DESCRIPTORS):
            opened.callback(os.close, os.open(os.devnull, os.O_RDONLY))


class Deaths:
    """The witness of the server: one pidfd for each client on this host.

    A pidfd becomes readable when the last thread of the process has let go of its memory, so
    that nothing can be written through it any more; a stopped process is not gone.
    """

    def __init__(self) -> None:
        self._self = this_process()
        self._poll = select.epoll()
        self._sessions: dict[int, bytes] = {}
        self._descriptors: dict[bytes, int] = {}

    @property
    def descriptor(self) -> int:
        """Readable when there is something in `seen`."""
        return self._poll.fileno()

    def watch(self, session: bytes, process: Process, peer: object) -> tuple[int, bool]:
        """See `core.Witness`; `peer` is the process id that the kernel knows, or None."""
        known = peer if isinstance(peer, int) and peer else None
        if known is None and not same_host(process, self._self):
            return process.pid, False
        pid = known or process.pid
        try:
            descriptor = os.pidfd_open(pid)
        except OSError as error:
            raise ValueError(f"process {pid} cannot be watched: {error.strerror}") from error
        if not self._is(pid, process):
            os.close(descriptor)
            raise ValueError(f"process {pid} is not the one that says hello")
        self._sessions[descriptor] = session
        self._descriptors[session] = descriptor
        self._poll.register(descriptor, select.EPOLLIN)
        return pid, True

    def seen(self) -> list[bytes]:
        """Return the sessions of processes that are gone since the last call."""
        return [self._sessions[descriptor] for descriptor, _ in self._poll.poll(0)]

    def forget(self, session: bytes) -> None:
        """Stop watching the process of a session."""
        descriptor = self._descriptors.pop(session, None)
        if descriptor is not None:
            del self._sessions[descriptor]
            self._poll.unregister(descriptor)
            os.close(descriptor)

    def close(self) -> None:
        """Stop watching all."""
        for session in list(self._descriptors):
            self.forget(session)
        self._poll.close()

    def _is(self, pid: int, process: Process) -> bool:
        """Called after the pidfd is open: from then on the process id cannot be reused."""
        try:
            return started(pid) == process.started
        except OSError:
            return False
