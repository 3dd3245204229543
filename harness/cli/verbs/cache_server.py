"""`kvproof cache-server`."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App

app = App(name="cache-server", help="Objects that engine processes share, through one server.")


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
        Of the arena, for example 4GiB; taken at once.
    address
        ipc:///path/of/a.sock or tcp://127.0.0.1:7070; a socket of this user by default.
    host
        Address of a network interface to listen on instead; needs a token.
    port
        With host.
    token_file
        File whose first line clients must know; readable for its owner only.
    metrics_port
        Port for Prometheus on 127.0.0.1; none by default.
    patience
        Seconds of silence after which what a client is writing is open to others.

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
    """Show what a server holds, and for whom.

    Parameters
    ----------
    address
        As for serving.
    token_file
        As for serving.
    json
        As JSON, for programs.
    timeout
        Seconds to wait for an answer.

    """
    from kvproof.harness.cli.actions import cache_server

    cache_server.status(address=address, token_file=token_file, json=json, timeout=timeout)
