"""Writes a violation with the last seconds before it, for `kvproof replay`."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import msgspec

from kvproof.harness.errors import UsageError
from kvproof.harness.recorder.recording import Header
from kvproof.harness.recorder.rotation import SUFFIX
from kvproof.harness.recorder.verdict import Broken
from kvproof.harness.watch.counts import Counts
from kvproof.harness.watch.tail import Tail

MOST = 20
"""Folders written in a run: a bug that goes on would fill the disk."""

NAME = "incident.json"


def write_incident(
    directory: Path, stem: str, header: Header, broken: Broken, counts: Counts, tail: Tail
) -> Path:
    """Return the new folder, readable by its owner only. Raises OSError."""
    at = time.strftime("%Y%m%d-%H%M%S")
    prop = re.sub(r"\W", "", broken.violation.property)
    folder = directory / f"{at}-{counts.incidents + 1:02d}-{prop}-{stem}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for number, text in tail.files():
        _write(folder / f"{stem}.{number:05d}{SUFFIX}", text)
    said = msgspec.json.encode(_described(header, broken, counts, at))
    _write(folder / NAME, msgspec.json.format(said) + b"\n")
    return folder


def _write(path: Path, text: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(text)


def _described(header: Header, broken: Broken, counts: Counts, at: str) -> dict[str, Any]:
    return {
        "kvproof": "incident",
        "format": 1,
        "property": broken.violation.property,
        "message": str(broken.violation),
        "request": broken.name,
        "at": at,
        "milliseconds": broken.milliseconds,
        "configuration": msgspec.to_builtins(header),
        "watch": {**vars(counts), "violations": dict(counts.violations), "judged": counts.judged},
    }


def incident_of(folder: Path) -> str:
    """Return the property that an incident was written for; empty for another folder."""
    path = folder / NAME
    if not path.is_file():
        return ""
    try:
        found = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"cannot read {str(path)!r}: {error}") from error
    return str(found.get("property", "")) if isinstance(found, dict) else ""
