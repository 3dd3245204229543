"""`kvproof cache-server`: serve objects, and print the status of a running server."""

from __future__ import annotations

import os
import signal
import sys
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from kvproof.harness.cli.arguments.cache_server import CacheServerArguments
from kvproof.harness.cli.output import standard_output
from kvproof.harness.cli.sizes import size_of
from kvproof.harness.errors import UsageError
from kvproof.harness.isolation.signals import ENDS
from kvproof.reference.cache_server.address import (
    Address,
    AddressError,
    default_address,
    parse,
    read_token,
)
from kvproof.reference.cache_server.report import Report

if TYPE_CHECKING:
    from kvproof.reference.cache_server.server import Server

LEAST_MEMORY = 1 << 20


def serve(given: CacheServerArguments) -> None:
    """Serve until a signal. Raises UsageError, and KeyboardInterrupt after Ctrl-C."""
    where, token = _where(given.address, given.host, given.port), _token(given.token_file)
    if not (where.local or token):
        raise UsageError(
            f"{where.url} can be reached from other machines, and there is no token",
            "give --token-file, or listen on ipc:// or 127.0.0.1",
        )
    if given.patience <= 0:
        raise UsageError(
            f"patience {given.patience:g} must be positive", "for example --patience 60"
        )
    received = _listen()
    with _server(where, _memory(given.memory), token, given.patience) as server:
        _tell(server, given.metrics_port)
        server.serve(until=lambda: bool(received))
    if signal.SIGINT in received:
        raise KeyboardInterrupt


def status(*, address: str, token_file: Path | None, json: bool, timeout: float) -> None:
    """Print the content of a server, and its clients. Raises UsageError."""
    report = _report(_address(address).url, _token(token_file), timeout)
    console = standard_output()
    if json:
        import msgspec

        text = msgspec.json.format(msgspec.json.encode(report)).decode()
        console.print(text, markup=False, highlight=False, soft_wrap=True)
        return
    console.print(_totals(report))
    console.print()
    console.print(_sessions(report))


def _listen() -> list[int]:
    """Return the list to which signal handlers append stop signals.

    They must not raise: ZeroMQ's messages look for signals while they are deallocated, where an
    exit would end the process at once, without closing its socket and its clients.
    """
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        del frame
        received.append(number)

    for each in ENDS:
        if signal.getsignal(each) is not signal.SIG_IGN:
            signal.signal(each, note)
    return received


def _server(address: Address, size: int, token: str, patience: float) -> Server:
    try:
        from kvproof.reference.cache_server.arena import ArenaError
        from kvproof.reference.cache_server.core import Settings
        from kvproof.reference.cache_server.server import Server

        return Server(address, Settings(size, token, patience))
    except ImportError as error:
        raise UsageError(
            "the cache server needs ZeroMQ", "pip install 'kvproof[server]'"
        ) from error
    except AddressError as error:
        raise UsageError(str(error), error.hint or "give another --address") from error
    except ArenaError as error:
        raise UsageError(str(error), "give less --memory") from error


def _tell(server: Server, metrics_port: int) -> None:
    console = standard_output()
    console.print(
        f"kvproof {version('kvproof')} cache server, process {os.getpid()}: "
        f"{_bytes(server.core.settings.size)} at {server.address}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    if metrics_port:
        _publish(server, metrics_port)
        console.print(f"metrics at http://127.0.0.1:{metrics_port}/metrics", highlight=False)
    sys.stdout.flush()


def _publish(server: Server, port: int) -> None:
    try:
        from prometheus_client import CollectorRegistry, start_http_server

        from kvproof.reference.cache_server.metrics import ServerCollector
    except ImportError as error:
        raise UsageError(str(error), "pip install 'kvproof[metrics]'") from error
    registry = CollectorRegistry()
    registry.register(ServerCollector(lambda: server.snapshot))
    try:
        start_http_server(port, "127.0.0.1", registry)
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"cannot serve metrics on port {port}: {error}", "give another --metrics-port"
        ) from error


def _report(address: str, token: str, timeout: float) -> Report:
    try:
        from kvproof.reference.cache_server.client import connect
        from kvproof.reference.cache_server.connection import CacheServerGone, CacheServerRefused

        with connect(address, token=token, timeout=timeout) as client:
            return client.report()
    except ImportError as error:
        raise UsageError(
            "the cache server needs ZeroMQ", "pip install 'kvproof[server]'"
        ) from error
    except (AddressError, CacheServerGone, CacheServerRefused) as error:
        hint = getattr(error, "hint", "") or "see kvproof cache-server --help"
        raise UsageError(str(error), hint) from error


def _where(address: str, host: str, port: int) -> Address:
    if not host:
        where = _address(address)
        if not where.local:
            raise UsageError(
                f"address {address!r} can be reached from other machines",
                "if that is meant: --host and --token-file",
            )
        return where
    if address:
        raise UsageError(f"both address {address!r} and host {host!r}", "give one of them")
    return _address(f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}")


def _address(text: str) -> Address:
    try:
        return parse(text or default_address())
    except AddressError as error:
        raise UsageError(str(error), "see kvproof cache-server --help") from error


def _memory(text: str) -> int:
    size = size_of(text)
    if size < LEAST_MEMORY:
        raise UsageError(f"memory {text!r} is less than 1 MiB", "for example --memory 4GiB")
    return size


def _token(path: Path | None) -> str:
    try:
        return read_token(path) if path else ""
    except AddressError as error:
        raise UsageError(str(error), error.hint) from error


def _totals(report: Report) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    share = report.used / report.capacity
    rows = {
        "memory": f"{_bytes(report.used)} of {_bytes(report.capacity)} used ({share:.0%}), "
        f"largest free extent {_bytes(report.largest_free)}",
        "objects": f"{report.objects:,} readable, {report.leased:,} under a lease, "
        f"{report.reserved:,} being written, {report.dropped:,} dropped and still held",
        "pins": f"{report.pinned:,} objects, {_bytes(report.pinned_bytes)}",
        "since the start": f"{report.stored:,} stored, {report.evicted:,} evicted, "
        f"{report.hits:,} hits, {report.misses:,} misses",
        "refused": ", ".join(f"{n:,} {why}" for why, n in sorted(report.refused.items())) or "none",
    }
    for name, text in rows.items():
        table.add_row(name, text)
    return table


def _sessions(report: Report) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("process", "namespace", "writing", "leases", "silent", "state"):
        table.add_column(column, overflow="fold")
    for each in report.sessions:
        state = "silent: its keys are open to others" if each.lapsed else "live"
        table.add_row(
            str(each.pid),
            escape(each.namespace or "-"),
            str(each.reserved),
            str(each.leases),
            f"{each.silent:.1f} s",
            state if each.provable else f"{state}; its end cannot be proved",
        )
    return table


def _bytes(count: int) -> str:
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count >= 1 << power:
            return f"{count / (1 << power):.4g} {unit}"
    return f"{count} B"
