"""Sizes and places of the tiers below the pool (section O: `host_tier`, `disk_tier`)."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple, TypeAlias

from kvproof.reference.core.validation import require

Size: TypeAlias = "int | str"
"""Bytes, or a number with a unit: `4GiB`."""

DiskTierOption: TypeAlias = "tuple[str | Path, Size] | None"

UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?) *([A-Za-z]*)")
_RULE = f"bytes, or a number with one of {', '.join(filter(None, UNITS))}"


class TierOptions(NamedTuple):
    """Section O: the tiers of one engine, checked by `check_tiers`."""

    host_tier: Size = 0
    """Host memory for evicted objects: bytes, or `4GiB`; 0: no tiers."""
    disk_tier: DiskTierOption = None
    """A folder and its size, for objects that host memory evicts; None: none."""
    weights: str = ""
    """Names the weights: objects on a disk outlive the process and are found by this name (H6)."""


class DiskPlace(NamedTuple):
    """A folder for objects, and how many bytes of files it may hold."""

    path: Path
    size: int


def read_size(value: object, name: str = "host_tier", *, example: object = "4GiB") -> int:
    """Return a size in bytes. Raises ConfigError (O1)."""
    if isinstance(value, int) and not isinstance(value, bool):
        require(value >= 0, name, value, _RULE, example)
        return value
    found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    known = found is not None and found[2] in UNITS
    require(known, name, value, _RULE, example)
    assert found is not None
    return int(Fraction(found[1]) * UNITS[found[2]])


def read_disk(value: object) -> DiskPlace | None:
    """Return where the disk tier lies, None if there is none. Raises ConfigError (O1)."""
    if value is None:
        return None
    example = ("/var/cache/kvproof", "100GiB")
    path, given = value if isinstance(value, tuple | list) and len(value) == 2 else (None, None)
    named = isinstance(path, str | Path) and str(path) not in ("", ".")
    require(named, "disk_tier", value, "a folder and its size", example)
    assert isinstance(path, str | Path)
    size = read_size(given, "disk_tier", example=example)
    require(size > 0, "disk_tier", value, "a folder and a size above 0", example)
    return DiskPlace(Path(path), size)


def check_remote(host: object, *, weights: str) -> None:
    """Raise ConfigError for a remote store without host memory or weights' name (H6)."""
    rule = "above 0 if there is a remote store: its objects come through host memory"
    require(read_size(host) > 0, "host_tier", host, rule, "4GiB")
    rule = "the name of the weights if there is a remote store: others find objects by it"
    require(bool(weights), "weights", weights, rule, "org/model@revision bf16")


def check_tiers(
    host: object, disk: object, *, weights: object, caching: bool, algorithm: str
) -> None:
    """Refuse tiers that nothing could be reused from (H6). Raises ConfigError."""
    size, place = read_size(host), read_disk(disk)
    text = isinstance(weights, str)
    require(text, "weights", weights, "a name", "org/model@revision bf16")
    rule = "0 if enable_prefix_caching is false: nothing would be looked up"
    require(caching or not size, "host_tier", host, rule, 0)
    rule = "None unless host_tier is on: what is read comes through host memory"
    require(bool(size) or place is None, "disk_tier", disk, rule, None)
    rule = "the name of the weights if disk_tier is on: files outlive the process"
    require(bool(weights) or place is None, "weights", weights, rule, "org/model@revision bf16")
    rule = "a digest of 256 bits if host_tier is on"
    require(algorithm != "builtin" or not size, "hash_algorithm", algorithm, rule, "sha256")
