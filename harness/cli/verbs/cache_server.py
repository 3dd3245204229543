"""`kvproof cache-server`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from kvproof.harness.cli.arguments.cache_server import CacheServerArguments

app = App(name="cache-server", help="Share KV objects between engine processes.")


@app.default
def serve(arguments: Annotated[CacheServerArguments, Parameter(name="*")]) -> None:
    """Serve until Ctrl-C or SIGTERM."""
    from kvproof.harness.cli.actions import cache_server

    cache_server.serve(arguments)


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
