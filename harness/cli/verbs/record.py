"""`kvproof record`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def record(
    *command: Annotated[str, Parameter(allow_leading_hyphen=True)],
    output: Path | None = None,
    max_size: str = "1G",
    hash_tokens: bool = False,
) -> None:
    """Log the cache operations of a live engine, for kvproof replay.

    kvproof record -- vllm serve MODEL

    Without a command it prints the environment that does the same in a shell, a container or a
    service: eval "$(kvproof record --output DIR)". docs/guides/record.md lists the recorded data.

    Parameters
    ----------
    command
        Command that starts the engine, after --.
    output
        Folder of the recordings; recordings/DATE-TIME by default.
    max_size
        Size limit of the files of one cache, for example 500M or 4G; the oldest are dropped.
    hash_tokens
        Write tokens, salts, adapters and images as hashes under a key that is thrown away.

    """
    from kvproof.harness.cli.actions import record as action

    action.record(command, output=output, max_size=max_size, hash_tokens=hash_tokens)
