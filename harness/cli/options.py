"""Options that several verbs have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeAlias

from cyclopts import Parameter

Targets: TypeAlias = Annotated[
    list[str] | None, Parameter(("--target", "--targets"), consume_multiple=True)
]
Output: TypeAlias = Annotated[Path | None, Parameter("--output")]


def names(given: Sequence[str] | None) -> tuple[str, ...]:
    """Accept `--kernels a,b`, `--kernels "a b"` and `--kernels a --kernels b`; each name once."""
    found = [name for item in given or () for name in item.replace(",", " ").split()]
    return tuple(dict.fromkeys(found))
