"""Which build of an engine runs: its installed files, or the module and commit of a target."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

JOB = f"{__name__}:identity"
TIMEOUT_S = 60.0


def identity(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return facts of a build as text, in the engine's process.

    `package`: name of a distribution, or empty; `factory`: `package.module:function`. Facts:
    `version`, `record` (SHA-256 of the list of installed files, which has a hash of each), `source`
    (address and commit of a build from a checkout), `module` (SHA-256 of the factory's file) and
    `commit` (of the checkout that has the file, with `+` if that has changes).
    """
    found = _installed(arguments["package"]) or _module(arguments["factory"])
    return {name: value for name, value in found.items() if value}


def _installed(package: str) -> dict[str, str]:
    try:
        there = distribution(package)
    except (PackageNotFoundError, ValueError):
        return {}
    record = there.read_text("RECORD") or ""
    return {
        "version": there.version,
        "record": hashlib.sha256(record.encode()).hexdigest() if record else "",
        "source": (there.read_text("direct_url.json") or "")[:1000],
    }


def _module(factory: str) -> dict[str, str]:
    module = sys.modules.get(factory.partition(":")[0])
    name = getattr(module, "__file__", None)
    if not name:
        return {}
    path = Path(name)
    return {"module": hashlib.sha256(path.read_bytes()).hexdigest(), "commit": _commit(path.parent)}


def _commit(folder: Path) -> str:
    def git(*words: str) -> str:
        line = ["git", "-C", str(folder), *words]
        done = subprocess.run(line, capture_output=True, text=True, check=True, timeout=TIMEOUT_S)  # noqa: S603 - git, as the user has it
        return done.stdout.strip()

    with suppress(OSError, subprocess.SubprocessError):
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    return ""
