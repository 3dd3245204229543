"""The job by which the suite `media` reaches LMDeploy's hash of an item.

Engine environment only.
"""

from __future__ import annotations

from typing import Any

from kvproof.harness.adapters.lmdeploy.api import engine
from kvproof.harness.contract.media_hash import answered


def media(arguments: dict[str, Any]) -> dict[str, Any]:
    """Carry out calls: `traits`, `hash` (`harness.contract.media_hash`)."""
    traits = {"grid": True, "dtypes": ("float32", "float16"), "lists": True}
    return answered(arguments, traits, _content_hash)


def _content_hash(data: Any, grid: Any) -> str:
    """Hash a tensor or a list of tensors, with the grid where the models have it (`meta`)."""
    names = engine()
    tensor = names.torch.from_numpy
    item = names.MultiModalData(
        data=list(map(tensor, data)) if isinstance(data, list) else tensor(data),
        start=0,
        meta={"grid_thw": tensor(grid)},
    )
    names.ensure_multimodal_content_hashes({"image": [item]})
    return str(item.content_hash)
