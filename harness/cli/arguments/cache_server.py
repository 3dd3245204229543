"""Options of `kvproof cache-server`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class CacheServerArguments:
    """Options of the verb; each attribute docstring is the help text."""

    memory: str
    """Size of the arena, for example 4GiB; allocated at the start."""
    address: str = ""
    """ipc:///path/of/a.sock or tcp://127.0.0.1:7070; a socket of this user by default."""
    host: str = ""
    """Address of a network interface to listen on instead; needs a token."""
    port: int = 7070
    """Port for host."""
    token_file: Path | None = None
    """File with the token of the clients in its first line; readable for its owner only."""
    metrics_port: int = 0
    """Port for Prometheus on 127.0.0.1; none by default."""
    patience: float = 60.0
    """Seconds of silence after which other clients may write a silent client's keys."""
