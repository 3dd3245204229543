"""Compiles decode launches for a Hopper GPU, which need not be there; prints their shared bytes.

A program of its own: the tests run Triton's interpreter, in which nothing is compiled.
"""

import json
import sys

import torch
from triton import compile as compiled
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kvproof.kernels.paged_decode import rules
from kvproof.kernels.paged_decode.launch import constants, shape_of_problem
from kvproof.kernels.paged_decode.triton_kernel import paged_decode_kernel

POINTERS = {
    "q": "*bf16", "out": "*bf16", "block_table": "*i32", "lengths": "*i32", "sinks": "*fp32",
    "k_scale": "*fp32", "v_scale": "*fp32", "arrivals": "*i32", "parts": "*fp32", "norms": "*fp32",
    "scale": "fp32", "soft_cap": "fp32",
}  # fmt: skip


def tensors(page, dtype, head_dim, value_dim, heads, kv_heads, q_tokens):
    def empty(*shape, dtype=torch.bfloat16):
        return torch.empty(shape, dtype=dtype, device="meta")

    pages = (4, page, kv_heads)
    scales = {torch.int8: pages, torch.float8_e4m3fn: (kv_heads,)}
    scale = empty(*scales[dtype], dtype=torch.float32) if dtype in scales else None
    return {
        "q": empty(2, q_tokens, heads, head_dim), "out": empty(2, q_tokens, heads, value_dim),
        "k_pages": empty(*pages, head_dim, dtype=dtype),
        "v_pages": empty(*pages, head_dim, dtype=dtype) if value_dim == head_dim else None,
        "sinks": None, "k_scale": scale, "v_scale": scale,
    }  # fmt: skip


def shared_bytes(*, dtype, **axes):
    inputs = tensors(dtype=getattr(torch, dtype), **axes)
    shape = shape_of_problem(*(inputs[name] for name in ("q", "k_pages", "v_pages", "out")))
    chosen = rules.config(shape)
    fixed = constants(
        shape, chosen, inputs, {"window": 0, "soft_cap": 0.0, "tables_ready": True}
    ) | {"ASM": True}
    fixed |= {name: None for name in ("sinks", "k_scale", "v_scale") if inputs[name] is None}
    words = "*bf16" if dtype == "bfloat16" else "*i16"
    known = POINTERS | {"k_pages": words, "v_pages": words}
    names = paged_decode_kernel.arg_names
    signature = {n: "constexpr" if n in fixed else known.get(n, "i32") for n in names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(names)
               if signature[n].startswith("*")}  # fmt: skip
    source = ASTSource(
        paged_decode_kernel, signature, {(names.index(n),): v for n, v in fixed.items()}, aligned
    )
    options = {"num_warps": chosen.warps, "num_stages": chosen.stages}
    if chosen.registers:
        options["maxnreg"] = chosen.registers
    return compiled(source, target=GPUTarget("cuda", 90, 32), options=options).metadata.shared


if __name__ == "__main__":
    sys.stdout.write(json.dumps([shared_bytes(**axes) for axes in json.loads(sys.argv[1])]))
