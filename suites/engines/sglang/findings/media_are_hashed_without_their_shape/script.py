# ruff: noqa: T201 - a plain script: it prints
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""SGLang 0.5.23: a white image of 2 x 8 patches and one of 4 x 4 have the same tokens in the tree.

Needs sglang, no GPU. In the environment that `kvproof targets install sglang==0.5.23` builds, some
packages of it are missing: python script.py <kvproof>/harness/adapters/sglang/stubs.py
"""

import runpy
import sys
from array import array

if len(sys.argv) > 1:
    runpy.run_path(sys.argv[1])["install"]()

import torch
from sglang.srt.managers.mm_utils import pad_mm_tokens
from sglang.srt.managers.schedule_batch import Modality, MultimodalDataItem, MultimodalInputs

IMAGE = 151655
PROMPT = array("q", [1, 2, *[IMAGE] * 4, 3])


def padded(features, grid):
    """Return the prompt as the tree gets it; a merger of 2 x 2 leaves four places of 16 patches."""
    item = MultimodalDataItem(
        modality=Modality.IMAGE,
        feature=features,
        offsets=[(2, 5)],
        model_specific_data={"image_grid_thw": torch.tensor([grid])},
    )
    item.set_pad_value()
    inputs = MultimodalInputs(
        mm_items=[item], im_token_id=IMAGE, video_token_id=0, audio_token_id=0
    )
    return list(pad_mm_tokens(PROMPT, inputs))


white = torch.ones(16, 1176)
wide, square = padded(white, [1, 2, 8]), padded(white, [1, 4, 4])
print(f"2 x 8: {wide}\n4 x 4: {square}")
assert wide == square, "the images have tokens of their own: fixed"

tiles = padded([white[:4], white[4:]], [1, 4, 4])
print(f"two tiles of 4 and 12 patches: {tiles}")
assert tiles == square, "the tiles have tokens of their own: fixed"
