"""The job by which the suite `media` reaches vLLM's identifier of an item. Engine environment only.

Items are arrays, or lists of arrays: frames, or tiles. Their grid follows from their shape.
"""

from __future__ import annotations

from typing import Any

from kvproof.harness.adapters.vllm.api import identifier_of
from kvproof.harness.contract.media_hash import answered


def media(arguments: dict[str, Any]) -> dict[str, Any]:
    """Carry out calls: `traits`, `hash` (`harness.contract.media_hash`)."""
    traits = {"grid": False, "dtypes": ("uint8", "float32", "float16"), "lists": True}
    return answered(arguments, traits, lambda item, _: identifier_of("image", item))
