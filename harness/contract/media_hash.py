"""Calls of the suite `media` on an engine's own content hash of media (H4).

    traits {}       -> settings: whether an item has a grid, dtypes: of features, lists: whether an
                       item may be a list of arrays
    hash   {items}  -> for each item the engine's own identity of it, as text

An item is what a processor hands to the engine:

    {"parts": [[dtype, shape, first, step], ...], "listed": bool, "grid": [[t, h, w], ...] or null,
     "layout": 0, 1 or 2}

The numbers of a part are first, first + step, ... in the order of its shape. Layout 0 is dense;
1 is every other number of a larger array; 2 has the axes in another order in memory. It
runs inside the engine's environment: Python 3.10.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Hash = Callable[[list[Any], Any], str]
"""The engine's identity of an item: arrays or tensors, and a grid or None."""


def answered(arguments: dict[str, Any], traits: Mapping[str, Any], hashed: Hash) -> dict[str, Any]:
    """Carry out calls, in order."""
    return {
        "answers": [
            dict(traits) if verb == "traits" else [_hash(each, hashed) for each in given["items"]]
            for verb, given in arguments["calls"]
        ]
    }


def _hash(item: Mapping[str, Any], hashed: Hash) -> str:
    parts = [array(*part, layout=item["layout"]) for part in item["parts"]]
    grid = item["grid"]
    return hashed(parts if item["listed"] else parts[0], None if grid is None else np.array(grid))


def array(dtype: str, shape: list[int], first: int, step: int, *, layout: int) -> Any:
    """Return an array of these numbers, in one of three layouts."""
    count = int(np.prod(shape, dtype=int))
    numbers = (first + step * np.arange(count)).astype(dtype).reshape(shape)
    if layout == 0 or 1 in shape:  # torch takes such a view for dense, and then fails on its bytes
        return numbers
    if layout == 2:
        return np.asfortranarray(numbers)
    wide = np.zeros([2 * size for size in shape], dtype)
    view = wide[tuple(slice(None, None, 2) for _ in shape)]
    view[...] = numbers
    return view
