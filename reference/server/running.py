"""Runs the server in this process: a socket, uvicorn, and an end in order."""

from __future__ import annotations

import ipaddress
import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from kvproof.reference.core.validation import ConfigError
from kvproof.reference.server.app import make_app
from kvproof.reference.server.connections import Door, protocol
from kvproof.reference.server.options import ServerConfig
from kvproof.reference.server.service import Service

_LAST_RESORT = 5.0
"""Seconds after the time of grace to end open answers; then connections are cut."""
_BACKLOG = 2048


def listen(config: ServerConfig) -> socket.socket:
    """Take the address. Raises ConfigError if that is not possible."""
    try:
        found = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, number, _, address = found[0]
        bound = Door(family, kind, number)
    except OSError as error:
        raise _unusable(config, error) from None
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
        bound.listen(_BACKLOG)  # or another server could still bind the same address
    except OSError as error:
        bound.close()
        raise _unusable(config, error) from None
    return bound


def _unusable(config: ServerConfig, error: OSError) -> ConfigError:
    return ConfigError(
        f"cannot listen on {config.host} port {config.port}: {error.strerror}; "
        "give an address of this machine and a free port, for example --port 0"
    )


def is_loopback(bound: socket.socket) -> bool:
    """Return whether only this machine reaches the address."""
    return ipaddress.ip_address(bound.getsockname()[0]).is_loopback


def url_of(bound: socket.socket) -> str:
    """Return where clients find the server."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Server(uvicorn.Server):
    """Gives requests under way their time of grace, and answers those that need longer."""

    def __init__(self, config: uvicorn.Config, service: Service, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._service, self._ready = service, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.drain()
        await super().shutdown(sockets)


def run(
    service: Service, bound: socket.socket, *, model: str, ready: Callable[[], None]
) -> signal.Signals:
    """Serve until a signal ends it; returns which. Main thread only.

    `ready` is called once clients can connect. A second Ctrl-C cuts the time of grace short.
    """
    received: list[signal.Signals] = []

    def remember(number: int, frame: FrameType | None) -> None:
        del frame
        received.append(signal.Signals(number))

    before = {each: signal.signal(each, remember) for each in _ends()}
    config = uvicorn.Config(
        make_app(service, model=model),
        log_config=None,
        access_log=False,
        lifespan="on",
        ws="none",
        loop="asyncio",  # another one would accept connections without `Door`
        http=protocol(most=service.config.max_connections, patience=service.config.request_timeout),
        backlog=_BACKLOG,
        timeout_graceful_shutdown=round(service.config.grace + _LAST_RESORT),
    )
    try:
        service.loop.start()  # not in the lifespan, whose errors uvicorn logs with a traceback
        _Server(config, service, ready).run(sockets=[bound])
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    return received[0] if received else signal.SIGTERM


def _ends() -> list[signal.Signals]:
    """Signals that end the server; with nohup a closed terminal does not."""
    hangup = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hangup else [])]
