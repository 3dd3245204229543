"""Runs in the attacked installation: loads kvproof once, forks a process for every command.

Stands alone, because another version than this one may be under attack. It reads one JSON object
a line from a Unix socket, with the descriptors of the command's standard streams beside it, and
answers with the process id, then with the exit status.

    python starter.py FD
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib
import io
import json
import os
import pkgutil
import resource
import signal
import socket
import sys
import threading
import traceback
from typing import Any

LOADED = (
    "kvproof.harness.cli",
    "kvproof.suites.runner",
    "kvproof.harness.records",
    "kvproof.reports",
    "kvproof.reference.server",
    "kvproof.reference.cache_server",
    "kvproof.eval.verdict",
)
"""Packages whose modules are loaded before the first fork."""
SKIPPED = {"__main__", "hugging_face"}
"""Modules that load torch, which costs every fork more than it saves the few that need it."""
STACK = 1 << 20
PR_CAPBSET_DROP = 24
CAPABILITY_VERSION = 0x20080522
LIMITS = {
    "memory": resource.RLIMIT_AS,
    "file_size": resource.RLIMIT_FSIZE,
    "descriptors": resource.RLIMIT_NOFILE,
}


def load() -> None:
    """Import all modules that a verb may need, as far as they can be imported."""
    for name in LOADED:
        package = importlib.import_module(name)
        for each in pkgutil.walk_packages(package.__path__, f"{name}."):
            if not SKIPPED & set(each.name.split(".")):
                with contextlib.suppress(Exception):
                    importlib.import_module(each.name)


def drop_capabilities() -> None:
    """Root without its powers: permissions of files hold, and nothing can be mounted."""
    if os.getuid():
        return
    libc = ctypes.CDLL(None, use_errno=True)
    for each in range(64):
        libc.prctl(PR_CAPBSET_DROP, each, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    libc.capset(header, (ctypes.c_uint32 * 6)())


def grow_stack() -> None:
    """Take the stack's memory now: the kernel kills a process whose stack cannot grow."""
    with open("/proc/self/maps") as maps:  # noqa: PTH123 - as early as possible
        line = next(each for each in maps if each.rstrip().endswith("[stack]"))
    ctypes.memset(int(line.split("-")[0], 16) - STACK, 0, 1)


def limit(limits: dict[str, int]) -> None:
    """Bound this process; memory is what it may take beyond the present amount."""
    for name, most in limits.items():
        if name == "memory":
            grow_stack()
            with open("/proc/self/statm") as pages:  # noqa: PTH123 - as early as possible
                most += int(pages.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(LIMITS[name], (most, most))


def become(order: dict[str, Any], streams: list[int]) -> None:
    """Turn a fork into a process that a shell could have started."""
    os.setsid()
    for target, descriptor in enumerate(streams):
        os.dup2(descriptor, target)
    os.closerange(3, 256)
    drop_capabilities()
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.argv = ["kvproof", *order["words"]]
    sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False), encoding="utf-8")
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(io.FileIO(1, "w", closefd=False)), encoding="utf-8"
    )
    sys.stderr = io.TextIOWrapper(
        io.FileIO(2, "w", closefd=False), encoding="utf-8", errors="backslashreplace",
        write_through=True,
    )  # fmt: skip
    limit(order["limits"])


def serve(channel: socket.socket) -> dict[str, Any] | None:
    """Fork for each order; returns it in the fork, None at the end."""
    buffer = b""
    while True:
        data, streams, _, _ = socket.recv_fds(channel, 1 << 20, 3)
        if not data:
            return None
        buffer += data
        while not buffer.endswith(b"\n"):
            buffer += channel.recv(1 << 20)
        order, buffer = json.loads(buffer), b""
        child = os.fork()
        if not child:
            channel.close()
            return {"order": order, "streams": list(streams)}
        for each in streams:
            os.close(each)
        channel.sendall(json.dumps({"pid": child}).encode() + b"\n")
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        channel.sendall(json.dumps({"code": code}).encode() + b"\n")


def main() -> None:
    """Serve, and be the command in the fork."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    load()
    channel.sendall(b'{"ready": true}\n')
    found = serve(channel)
    if found is None:
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    become(found["order"], found["streams"])
    os._exit(ended(found["order"]["words"]))


def ended(words: list[str]) -> int:
    """Run a command to its end without the interpreter's own, which takes seconds."""
    from kvproof.harness.cli import main as run

    code = 0
    try:
        run(words)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except OSError:
        code = 120
    return code & 0xFF


if __name__ == "__main__":
    main()
