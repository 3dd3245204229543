"""Memory shared by processes that outlives none of them (G8); Linux.

The arena is a memory file of the server without a name in a file system. Clients of the same user
open it through the server's entry in /proc. The kernel frees it when its last user has ended,
however that happened.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from contextlib import suppress
from pathlib import Path

from kvproof.reference.cache_server.messages import Process, Welcome
from kvproof.reference.cache_server.process import same_host, started, this_process
from kvproof.reference.stores.object_store import StoreUnavailable

_POPULATE_WRITE = 23
"""MADV_POPULATE_WRITE, which the module mmap does not know yet; Linux 5.14."""


class ArenaError(StoreUnavailable, RuntimeError):
    """The memory of a server cannot be reached from here, or cannot be had."""


class ArenaLost(ArenaError):
    """The server ended before its memory was mapped."""


class Arena:
    """The server's memory file."""

    def __init__(self, size: int, generation: int) -> None:
        if size > (free := available()):
            raise ArenaError(f"{size} bytes of memory cannot be had: {free} are free")
        self.descriptor = os.memfd_create(_name(generation), os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.fchmod(self.descriptor, 0o600)
        try:
            os.posix_fallocate(self.descriptor, 0, size)  # or a client's first write would fail
        except OSError as error:
            os.close(self.descriptor)
            raise ArenaError(f"{size} bytes of memory cannot be had: {error.strerror}") from error
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, seals)

    def close(self) -> None:
        """Let go of the memory; clients keep their mappings."""
        os.close(self.descriptor)


def attach(welcome: Welcome, generation: int) -> memoryview:
    """Map the arena of a server on this host. Raises ArenaError, ArenaLost.

    All pages are touched now, so that no copy waits for one. A forked child does not inherit the
    mapping, because the server could not see that child die.
    """
    here, place = this_process(), welcome.server
    if not same_host(here, place):
        raise ArenaError("the cache server runs on another host or in another container")
    try:
        return _map(Path(f"/proc/{place.pid}/fd/{welcome.descriptor}"), welcome, generation)
    except (FileNotFoundError, ProcessLookupError) as error:
        raise ArenaLost("the cache server ended while its memory was being mapped") from error
    except OSError as error:
        raise ArenaError(
            f"the memory of the cache server (process {place.pid}) cannot be mapped: "
            f"{error.strerror}; run both as the same user"
        ) from error


def _map(path: Path, welcome: Welcome, generation: int) -> memoryview:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        _check(path, welcome.server, generation)
        mapped = mmap.mmap(descriptor, welcome.size)
    finally:
        os.close(descriptor)
    mapped.madvise(mmap.MADV_DONTFORK)
    with suppress(OSError):  # an older kernel: pages come one by one
        mapped.madvise(_POPULATE_WRITE)
    return memoryview(mapped)


def _check(path: Path, server: Process, generation: int) -> None:
    """The process id may have been reused, with another file under the number."""
    name = f"/memfd:{_name(generation)} "
    if started(server.pid) != server.started or not str(path.readlink()).startswith(name):
        raise ArenaLost("the cache server ended while its memory was being mapped")


def available() -> int:
    """Return the bytes that can be had: asking for more would end in a kill, not in an error."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    free = int(fields["MemAvailable"].split()[0]) * 1024
    group = Path("/sys/fs/cgroup")
    with suppress(OSError, ValueError):  # no such group, or one without a limit
        most = int((group / "memory.max").read_text(encoding="ascii"))
        free = min(free, most - int((group / "memory.current").read_text(encoding="ascii")))
    return free


def _name(generation: int) -> str:
    return f"kvproof-cache-{generation:x}"
