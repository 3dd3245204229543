"""Sweep of attention over trees of drafts: inputs, the right answer, the least work.

Arguments are those of `paged_prefill`; `tree` is drawn. Drafts from the 65th of a request on, as a
chunk has them, see all before them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from kvproof.kernels.paged_prefill import paged_prefill, tree_masks
from kvproof.kernels.paged_prefill import sweep as prefill
from kvproof.kernels.paged_prefill.arguments import MOST_TREE
from kvproof.kernels.paged_prefill.inputs import requests_of
from kvproof.kernels.source import Source
from kvproof.kernels.spec import Case, Entry, Problem, called
from kvproof.kernels.tree_attention.cells import SETS, TREES

BEFORE = 9
"""A drawn draft follows one of so many before it, or the cached tokens."""


def make(case: Case, source: Source) -> Problem:
    """The inputs of prefill, with a mask."""
    problem = prefill.KERNEL.make(case, source)
    draw = np.random.default_rng(int(case["new"]) + int(case["context"]))
    rows, same = [], parents_of("same", MOST_TREE, np.random.default_rng(3))
    for request in requests_of(case):
        count = min(request.new, MOST_TREE)
        drawn = parents_of(str(case["tree"]), count, draw)
        found = same[:count] if case["tree"] == "same" else drawn
        masks = tree_masks(torch.from_numpy(found))
        rows += [masks, masks.new_full((request.new - count,), -1)]
    problem.arguments["tree"] = source.put(torch.cat(rows))
    return problem


def parents_of(tree: str, count: int, draw: np.random.Generator) -> NDArray[np.int64]:
    """The draft before each, -1 for none."""
    own = np.arange(count, dtype=np.int64)
    before = {"chain": own - 1, "star": np.minimum(own - 1, 0)}
    drawn: NDArray[np.int64] = np.maximum(own - draw.integers(1, BEFORE + 1, count), -1)
    return before.get(tree, drawn)


def _in_torch(**arguments: torch.Tensor) -> None:
    arguments["out"].copy_(prefill.attended(arguments, torch.float32))


KERNEL = replace(
    prefill.KERNEL,
    name="tree_attention",
    sentence="attention of drafts that branch over their paged context, with a mask",
    axes={**prefill.KERNEL.axes, "tree": TREES, "new": [8, 16, 32, 64], "window": [0]},
    cells=SETS,
    make=make,
)

OURS = Entry(prepare=called(paged_prefill))
TORCH = Entry(prepare=called(_in_torch))
