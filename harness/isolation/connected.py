"""A connector class of a user's own under an engine, `vllm-engine==0.33.0+package:Connector`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from kvproof.harness import strict_json
from kvproof.harness.errors import UsageError
from kvproof.harness.isolation.worker_handle import WorkerHandle

ENGINES = ("vllm-engine",)
"""Engines that run one."""


def divided(target: str) -> tuple[str, str]:
    """Return the engine's name with its version, and the connector; empty: it has none."""
    engine, plus, connector = target.partition("+")
    return (engine, connector) if plus and ":" in connector else (target, "")


def with_connector(targets: Sequence[str], connector: str, *, usual: str = "") -> list[str]:
    """Return targets with a connector in each engine that runs one; empty: with the usual one.

    Raises UsageError for a name of another form, and where no target runs the one that was given.
    """
    wanted = connector or usual
    if not wanted:
        return list(targets)
    check(wanted)
    found = [_beside(each, wanted) for each in targets]
    if connector and found == list(targets):
        raise UsageError(
            f"--connector {connector} is for {' and '.join(ENGINES)}, not for {', '.join(targets)}",
            f"for example --target {ENGINES[0]}==0.33.0",
        )
    return found


def _beside(target: str, connector: str) -> str:
    able = target.partition("==")[0] in ENGINES and not divided(target)[1]
    return f"{target}+{connector}" if able else target


def check(connector: str) -> None:
    """Raise UsageError for a name that is not of the form package.module:Class."""
    module, _, name = connector.partition(":")
    if not all(each.isidentifier() for each in [*module.split("."), name]):
        raise UsageError(
            f"connector {connector!r} is not of the form package.module:Class",
            "for example --connector my_package:MyConnector",
        )


def options_of(given: Iterable[str]) -> dict[str, Any]:
    """Return the options of `key=value` texts, as JSON or else as text. Raises UsageError."""
    return dict(map(_option, given))


def _option(given: str) -> tuple[str, Any]:
    name, equals, text = given.partition("=")
    if not (name and equals):
        raise UsageError(
            f"--connector-option {given!r} is not of the form key=value",
            'for example --connector-option path={folder}, or size=3, or \'tiers=["a", "b"]\'',
        )
    try:
        return name, strict_json.loads(given.encode().partition(b"=")[2])
    except strict_json.NotStrict:
        return name, text
    except UnicodeEncodeError as error:
        raise UsageError(
            f"--connector-option {given!r} is not UTF-8", "write it in UTF-8"
        ) from error


def connect(handle: WorkerHandle, connector: str, options: Sequence[str]) -> None:
    """Have an engine run with a connector, in each of its processes. Raises UsageError, TargetDied.

    It is imported from the engine's environment, then PYTHONPATH, then the working directory.
    """
    engine = handle.name.partition("==")[0].replace("-", "_")
    job = f"kvproof.harness.adapters.{engine}.jobs:connect"
    path = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), os.getcwd()]  # noqa: PTH109 - sys.path holds strings
    arguments = {"connector": connector, "options": options_of(options), "path": path}
    handle.name = f"{handle.name}+{connector}"
    found = handle.prepare(job, arguments)
    if found["problem"]:
        raise UsageError(f"connector {connector!r} {found['problem']}", found["hint"])
