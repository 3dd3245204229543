"""`kvproof cache-server`."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App

app = App(name="cache-server", help="Share KV objects between engine processes.")


@app.default
def serve(
    *,
    memory: str,
    address: str = "",
    host: str = "",
    port: int = 7070,
    token_file: Path | None = None,
    metrics_port: int = 0,
    patience: float = 60.0,
) -> None:
    """Serve until Ctrl-C or SIGTERM.

    Parameters
    ----------
    memory
        Size of the arena, for example 4GiB; allocated at the start.
    address
        ipc:///path/of/a.sock or tcp://127.0.0.1:7070; a socket of this user by default.
    host
        Address of a network interface to listen on instead; needs a token.
    port
        Port for host.
    token_file
        File with the token of the clients in its first line; readable for its owner only.
    metrics_port
        Port for Prometheus on 127.0.0.1; none by default.
    patience
        Seconds of silence after which other clients may write a silent client's keys.

    """
    from kvproof.harness.cli.actions import cache_server

    cache_server.serve(
        memory=memory,
        address=address,
        host=host,
        port=port,
        token_file=token_file,
        metrics_port=metrics_port,
        patience=patience,
    )


@app.command
def status(
    *, address: str = "", token_file: Path | None = None, json: bool = False, timeout: float = 5.0
) -> None:
    """Show the objects of a server, and their clients.

    Parameters
    ----------
    address
        As for serve.
    token_file
        As for serve.
    json
        Print JSON, for programs.
    timeout
        Seconds to wait for an answer.

    """
    from kvproof.harness.cli.actions import cache_server

    cache_server.status(address=address, token_file=token_file, json=json, timeout=timeout)
