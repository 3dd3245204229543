"""The job by which the suite `media` reaches SGLang's hash of an item. Engine environment only.

An item is made as `BaseMultimodalProcessor` makes it: features of one type, and the grid among the
data of the model. `set_pad_value` hashes it; the tree compares its padding values.
"""

from __future__ import annotations

from typing import Any

from kvproof.harness.adapters.sglang.api import engine
from kvproof.harness.contract.media_hash import answered


def media(arguments: dict[str, Any]) -> dict[str, Any]:
    """Carry out calls: `traits`, `hash` (`harness.contract.media_hash`)."""
    traits = {"grid": True, "dtypes": ("float32",), "lists": True}
    return answered(arguments, traits, _padding)


def _padding(features: Any, grid: Any) -> str:
    names = engine()
    tensor = names.torch.from_numpy
    item = names.MultimodalDataItem(
        modality=names.Modality.IMAGE,
        feature=list(map(tensor, features)) if isinstance(features, list) else tensor(features),
        model_specific_data={"image_grid_thw": tensor(grid)},
    )
    item.set_pad_value()
    return repr(item.padding_values())
