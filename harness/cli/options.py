"""Options that several verbs have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

from cyclopts import Parameter

Targets: TypeAlias = Annotated[
    list[str] | None, Parameter(("--target", "--targets"), consume_multiple=True)
]
Output: TypeAlias = Annotated[Path | None, Parameter("--output")]
