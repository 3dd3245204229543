"""A real Redis or Valkey server for tests: loopback only, in a folder of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvproof.suites.tests.patience import LONG, until

redis = pytest.importorskip("redis", reason="pip install 'kvproof[redis]'")

from kvproof.reference.stores.remote_config import RemoteConfig  # noqa: E402 - redis-py may be missing
from kvproof.reference.stores.remote_store import RemoteStore, connect  # noqa: E402 - redis-py may be missing

BINARY = os.environ.get("KVPROOF_REDIS") or next(
    filter(None, map(shutil.which, ("redis-server", "valkey-server"))), None
)
needs_server = pytest.mark.skipif(
    BINARY is None,
    reason="no redis-server or valkey-server on PATH; KVPROOF_REDIS may name one",
)
PATIENCE_S = LONG
"""Until a server that runs must answer, on a machine with other work."""


class Server:
    """One server process; the data are in its memory only."""

    def __init__(self, *options: str) -> None:
        # Addresses of sockets are short; pytest's folders are not.
        self.folder = Path(tempfile.mkdtemp(prefix="kvproof-"))
        self.socket = self.folder / "s"
        self.url = f"unix://{self.socket}"
        self.log = self.folder / "log"
        self._options = options
        self.start()

    def start(self, *options: str) -> None:
        """Start it, again after a kill, and wait until it answers."""
        assert BINARY is not None
        arguments = ("--port", "0", "--save", "", "--unixsocket", str(self.socket))
        more = ("--dir", str(self.folder), "--logfile", str(self.log), *self._options, *options)
        self.process = subprocess.Popen([BINARY, *arguments, *more])
        until(lambda: self.process.poll() is not None or self._answers())
        assert self.process.poll() is None, self.log.read_text()

    def _answers(self) -> bool:
        with self.client() as client:
            try:
                client.ping()
            except redis.AuthenticationError:
                return True
            except redis.ConnectionError:
                return False
        return True

    def client(self) -> redis.Redis:
        """To look into the server, and to damage what is in it."""
        once = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
        return redis.Redis(unix_socket_path=str(self.socket), retry=once)

    def kill(self) -> None:
        """As by the kernel for want of memory."""
        self.process.kill()
        self.process.wait()
        self.socket.unlink(missing_ok=True)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """It exists, and connections are accepted, but nothing is answered."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder)


@contextlib.contextmanager
def serving(*options: str) -> Iterator[Server]:
    server = Server(*options)
    try:
        yield server
    finally:
        server.close()


def patient(**options: object) -> RemoteConfig:
    """For tests that are not about time."""
    return RemoteConfig(**{"timeout_s": PATIENCE_S, **options})


@contextlib.contextmanager
def host(server: Server, **options: object) -> Iterator[RemoteStore]:
    """One host's store on a server."""
    with connect(server.url, patient(**{"backoff_s": 0.05, **options})) as store:
        yield store


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextlib.contextmanager
def link(server: Server, pump: Callable[[bytes], Iterator[bytes]]) -> Iterator[str]:
    """A TCP port before a server; `pump` may delay and cut what the server sends."""
    listener = socket.create_server(("127.0.0.1", 0))
    ends: list[socket.socket] = [listener]

    def copy(source: socket.socket, target: socket.socket, change: Callable) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                for piece in change(data):
                    target.sendall(piece)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect(str(server.socket))
                ends.extend((near, far))
                for ways in ((near, far, lambda data: iter((data,))), (far, near, pump)):
                    threads.append(threading.Thread(target=copy, args=ways))
                    threads[-1].start()

    threads = [threading.Thread(target=accept)]
    threads[0].start()
    try:
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
        for end in ends:
            end.close()


def key(number: int) -> bytes:
    return number.to_bytes(32, "big")


def content(number: int, size: int = 1000) -> bytes:
    return (number.to_bytes(4, "big") * (size // 4 + 1))[:size]


def name(number: int, *, epoch: str = "0") -> bytes:
    """Under which an object is at the server."""
    return f"kvproof:{epoch}:{key(number).hex()}".encode()


def read(store: RemoteStore, *numbers: int) -> list[bytes | None]:
    with store.acquire([*map(key, numbers)]) as lease:
        return [None if view is None else bytes(view) for view in lease.views]


def put(store: RemoteStore, *numbers: int) -> frozenset[bytes]:
    return store.store({key(number): content(number) for number in numbers})
