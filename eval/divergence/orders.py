"""Orders to a running server: a reset, sleep, other weights, a restart.

After each of them nothing may be hit that it should have removed.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Literal, TypeAlias

from kvproof.eval.run.config import Server
from kvproof.harness.errors import UsageError
from kvproof.harness.http.completion_client import CompletionClient

Life: TypeAlias = Literal["sleep", "weights", "restart", "reset"]
"""The situation after an order."""

Order: TypeAlias = Callable[[], None]

OPTIONS: Mapping[str, str] = {
    "sleep": "--sleep",
    "weights": "--other-weights and --own-weights",
    "restart": "--restart",
    "reset": "--reset",
}
"""Situation -> options that bring it about; keys of a file have the same names."""

_EXAMPLES: Mapping[Life, str] = {
    "sleep": "'/sleep?level=1' and /wake_up",
    "weights": """'/update_weights_from_disk {"model_path": "other"}'""",
    "restart": "'systemctl restart vllm'",
    "reset": "/reset_prefix_cache",
}

_POLL = 0.2
"""Seconds between two looks at a server that restarts."""


def orders(client: CompletionClient, server: Server) -> dict[Life, tuple[Order, ...]]:
    """Return those that a server takes. Between the two of `weights` the model is another one.

    Raises UsageError for one of these two alone.
    """
    if bool(server.other_weights) != bool(server.own_weights):
        given, missing = ("other", "own") if server.other_weights else ("own", "other")
        raise UsageError(f"{given} weights without {missing} ones", f"give {OPTIONS['weights']}")
    found: dict[Life, tuple[Order, ...]] = {
        life: tuple(partial(posted, client, life, paths) for paths in each)
        for life, each in _posts(server).items()
        if all(map(any, each))
    }
    if server.restart:
        found["restart"] = (partial(restarted, client, server),)
    return found


def _posts(server: Server) -> dict[Life, tuple[tuple[str, ...], ...]]:
    return {
        "sleep": (server.sleep,),
        "weights": (server.other_weights, server.own_weights),
        "reset": ((server.reset,),),
    }


def posted(client: CompletionClient, life: Life, paths: Iterable[str]) -> None:
    """Send POSTs, each a path and perhaps a body after a blank. Raises UsageError."""
    for each in paths:
        path, _, body = each.partition(" ")
        try:
            client.post(path, body.encode())
        except OSError as error:
            raise _refused(life, error) from error


def restarted(client: CompletionClient, server: Server) -> None:
    """Run the command, and wait until the server is ready. Raises UsageError."""
    deadline = time.monotonic() + server.ready_within
    try:
        subprocess.run(  # noqa: S603 - the user's own command
            server.restart, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            timeout=server.ready_within,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise _refused("restart", error) from error
    while time.monotonic() < deadline:
        with suppress(OSError):
            client.get(server.health)
            return
        time.sleep(_POLL)
    raise _refused("restart", TimeoutError(f"not ready within {server.ready_within:g} s"))


def _refused(life: Life, error: Exception) -> UsageError:
    hint = f"{OPTIONS[life]}: for example {_EXAMPLES[life]}, if the server has it"
    return UsageError(f"{life}: {error}", hint)
