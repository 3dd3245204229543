# ruff: noqa: T201, E402 - a plain script: it prints, asserts, and sets up before it imports
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""LMDeploy 0.18.0: paged decode multiplies slots after the last token too, so NaN there spreads.

Needs lmdeploy, torch and Triton; without a GPU it runs in Triton's interpreter: python script.py
"""

import importlib.util
import math
import os
import sys
from pathlib import Path
from types import ModuleType

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"


def enter(*names: str) -> None:
    """Enter packages without their __init__, which starts the serving stack."""
    root = Path(importlib.util.find_spec("lmdeploy").submodule_search_locations[0])
    for name in names:
        sys.modules[name] = module = ModuleType(name)
        module.__path__ = [str(root / Path(*name.split(".")[1:]))]
    sys.modules["transformers"] = module = ModuleType("transformers")
    module.__getattr__ = lambda name: type(name, (), {})  # only named in annotations


enter("lmdeploy", "lmdeploy.pytorch", "lmdeploy.pytorch.kernels", "lmdeploy.pytorch.kernels.cuda")
from lmdeploy.pytorch.kernels.cuda import pagedattention

if DEVICE == "cpu":  # the interpreter has no device to ask for its sizes
    pagedattention.is_cuda = lambda: False
    pagedattention.tl_log2 = math.log2  # of a constant
    pagedattention.tl_exp2 = lambda x: pagedattention.tl.exp2(x)
    pagedattention.fast_dividef = lambda a, b: a / b  # of CUDA's own library
    pagedattention.range = lambda *bounds: range(  # Triton 3.6 gives it arrays of one element
        *(int(b.handle.data.item()) if hasattr(b, "handle") else int(b) for b in bounds)
    )
    pagedattention.get_device_props = lambda *_: {
        "multi_processor_count": 4,
        "compute_capability": (9, 0),
        "warps_per_sm": 64,
        "blocks_per_sm": 32,
    }

PAGE, HEADS, SIZE, LENGTH = 16, 4, 16, 5
generator = torch.Generator().manual_seed(0)


def random(*shape: int) -> torch.Tensor:
    """Normal numbers, the same everywhere."""
    return torch.randn(*shape, generator=generator, dtype=torch.float16).to(DEVICE)


query, keys, values = random(1, HEADS, SIZE), *(random(2, PAGE, HEADS, SIZE) for _ in range(2))
clean = values.clone()
clean[1, LENGTH:] = 0
values[1, LENGTH:] = float("nan")


def decode(v: torch.Tensor) -> torch.Tensor:
    """One request of 5 tokens, in the first of 16 slots of page 1."""
    return pagedattention.flash_attn_with_kvcache(
        query,
        keys,
        v,
        cache_seqlens=torch.tensor([LENGTH], device=DEVICE),
        page_table=torch.tensor([[1]], device=DEVICE),
        softmax_scale=SIZE**-0.5,
    )


print("behind the last token are zeros: finite", bool(decode(clean).isfinite().all()))
print("behind the last token is NaN:    finite", bool(decode(values).isfinite().all()))
assert decode(clean).isfinite().all()
assert decode(values).isnan().any()
