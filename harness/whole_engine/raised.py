"""The sentence on an exception of an engine, with the place in the engine's own words."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

from kvproof.harness.whole_engine.findings import IllegalAccess

_HARNESS = Path(__file__).parents[1]


def raised(error: Exception) -> str:
    """Return the sentence on an exception of an engine; one of the harness is raised again."""
    frames = traceback.extract_tb(error.__traceback__)
    last = Path(frames[-1].filename)
    ours = _HARNESS in last.parents
    if ours and not isinstance(error, IllegalAccess):
        raise error
    roots = [_HARNESS, *(Path(each) for each in sys.path if each)]
    root = max((each for each in roots if each in last.parents), key=_depth, default=Path("/"))
    said = str(error) or frames[-1].line  # an assertion may have no words
    place = f"{last.relative_to(root)}:{frames[-1].name}"
    return f"the engine raised {type(error).__name__}: {said} in {place}"


def _depth(path: Path) -> int:
    return len(path.parts)
