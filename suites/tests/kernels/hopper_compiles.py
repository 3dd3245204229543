"""Compiles kernels for a Hopper GPU, which need not be there; prints their shared bytes.

A program of its own: the tests run Triton's interpreter, in which nothing is compiled. Its argument
is a JSON list of launches: `kernel`, the name of a function below, and what that takes.
"""

import json
import sys

import torch
from triton import compile as compiled
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource

from kvproof.kernels.latent import launch
from kvproof.kernels.latent.triton_kernel_combine import latent_combine
from kvproof.kernels.latent.triton_kernel_fp8 import latent_decode_fp8
from kvproof.kernels.latent.triton_kernel_hopper import latent_decode_hopper
from kvproof.kernels.latent.triton_kernel_narrow import latent_decode_narrow
from kvproof.kernels.latent.triton_kernel_sparse import sparse_latent_hopper
from kvproof.kernels.paged_decode import rules
from kvproof.kernels.paged_decode.launch import constants, shape_of_problem
from kvproof.kernels.paged_decode.triton_kernel import paged_decode_kernel
from kvproof.kernels.paged_prefill import hopper
from kvproof.kernels.paged_prefill.triton_kernel_hopper import prefill_hopper
from kvproof.kernels.sparse_latent import launch as sparse_launch
from kvproof.kernels.sparse_latent.triton_kernel import sparse_latent_kernel
from kvproof.kernels.state_step.triton_kernel import take_step

POINTERS = {
    "q": "*bf16", "out": "*bf16", "block_table": "*i32", "lengths": "*i32", "sinks": "*fp32",
    "k_scale": "*fp32", "v_scale": "*fp32", "arrivals": "*i32", "parts": "*fp32", "norms": "*fp32",
    "scale": "fp32", "soft_cap": "fp32", "pages": "*u8", "pages_scale": "*fp32", "scales": "*fp32",
    "pages_wide": "*bf16", "indices": "*i32", "weights": "*fp32", "query_starts": "*i32",
    "factor": "fp32", "cap": "fp32", "lse": "*fp32",
}  # fmt: skip


def shared_bytes(source_of, kernel, fixed, *, known=None, even=(), **options):
    """`even`: numbers that 16 divides."""
    types = POINTERS | (known or {})
    names = kernel.arg_names
    signature = {n: "constexpr" if n in fixed else types.get(n, "i32") for n in names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(names)
               if signature[n].startswith("*") or n in even}  # fmt: skip
    source = source_of(kernel, signature, {(names.index(n),): v for n, v in fixed.items()}, aligned)
    made = compiled(source, target=GPUTarget("cuda", 90, 32), options=options or {"num_warps": 4})
    return made.metadata.shared


def boxes(**sizes):
    """Descriptors of tensors of which a copy brings a box."""
    layout = gl.NVMMASharedLayout(128, 16)
    return {n: f"tensordesc<bf16[{r}, {c}],{layout!r}>" for n, (r, c) in sizes.items()}


QUERIES = boxes(q_desc=(64, 256), q_rope_desc=(64, 64))


def of_heads(heads, q_tokens, page):
    return {
        "HEADS": heads, "Q_TOKENS": q_tokens, "HEAD_BLOCKS": -(-heads * q_tokens // 64),
        "BATCH": 64, "LEAST": launch.LEAST_TILES, "PAGE": page,
    }  # fmt: skip


def latent(*, page, heads, q_tokens, sinks):
    box = launch.box(page)
    absent = {} if sinks else {"sinks": None, "lse": None}
    fixed = of_heads(heads, q_tokens, page) | {"BOX": box} | absent
    known = QUERIES | boxes(k_desc=(box, 256), rope_desc=(box, 64))
    return shared_bytes(GluonASTSource, latent_decode_hopper, fixed, known=known)


def narrow(*, page, heads, q_tokens):
    fixed = of_heads(heads, q_tokens, page) | {"lse": None}
    return shared_bytes(GluonASTSource, latent_decode_narrow, fixed, known=QUERIES)


def fp8(*, page, heads, q_tokens, sinks, terms=2):
    box = launch.box(page)
    absent = {} if sinks else {"sinks": None, "lse": None}
    fixed = of_heads(heads, q_tokens, page) | {"BOX": box} | absent
    fixed |= {"TERMS": terms, "STAGES": launch.STAGES[terms]}
    known = {n: f"tensordesc<fp8e4nv[{box}, {c}],{gl.NVMMASharedLayout(swizzle, 8)!r}>"
             for n, c, swizzle in (("k_desc", 512, 128), ("rope_desc", 64, 64))}  # fmt: skip
    return shared_bytes(GluonASTSource, latent_decode_fp8, fixed, known=known)


def sparse(*, heads, chosen, wide=False):
    fixed = {"HEADS": heads, "HEAD_BLOCKS": -(-heads // 64), "LEAST": launch.LEAST_TILES,
             "SIZE": chosen, "WHOLE": int(chosen > 100), "SMALL": chosen < 100,
             "lse": None}  # fmt: skip
    known = QUERIES | ({"pages": "*bf16"} if wide else {})
    fixed |= {"scales": None, "pages_wide": None} if wide else {}
    return shared_bytes(GluonASTSource, sparse_latent_hopper, fixed, known=known)


def sparse_wide(*, page, chosen, even):
    tiles = sparse_launch.WIDE
    fixed = {"PAGE": page, "CHOSEN": chosen, "ROWS": tiles.rows, "TILE": tiles.tile,
             "STAGES": tiles.stages, "WIDE": True, "GPU": True, "sinks": None}  # fmt: skip
    return shared_bytes(
        ASTSource, sparse_latent_kernel, fixed, known={"pages": "*bf16"}, even=even,
        num_warps=tiles.warps,
    )  # fmt: skip


def combine(*, columns, step, each):
    fixed = {
        "NUMBERS": 128, "HEADS": 128, "HEAD_BLOCKS": 2, "BATCH": 64, "LEAST": launch.LEAST_TILES,
        "TILE": 64, "ROWS": 64, "SIZE": 0, "VALUES": 512, "COLUMNS": columns,
        "MOST": 128, "STEP": step, "EACH": each, "PDL": True, "lse": None,
    }  # fmt: skip
    return shared_bytes(ASTSource, latent_combine, fixed)


def tensors(page, dtype, head_dim, value_dim, heads, kv_heads, q_tokens):
    def empty(*shape, dtype=torch.bfloat16):
        return torch.empty(shape, dtype=dtype, device="meta")

    pages, width = (4, page, kv_heads), head_dim // 2 if dtype == torch.uint8 else head_dim
    scales = {torch.int8: pages, torch.uint8: pages, torch.float8_e4m3fn: (kv_heads,)}
    scale = empty(*scales[dtype], dtype=torch.float32) if dtype in scales else None
    return {
        "q": empty(2, q_tokens, heads, head_dim), "out": empty(2, q_tokens, heads, value_dim),
        "lse": None,
        "k_pages": empty(*pages, width, dtype=dtype),
        "v_pages": empty(*pages, width, dtype=dtype) if value_dim == head_dim else None,
        "sinks": None, "k_scale": scale, "v_scale": scale,
    }  # fmt: skip


def portable(*, dtype, **axes):
    inputs = tensors(dtype=getattr(torch, dtype), **axes)
    shape = shape_of_problem(*(inputs[name] for name in ("q", "k_pages", "v_pages", "out")))
    chosen = rules.config(shape)
    fixed = constants(
        shape, chosen, inputs, {"window": 0, "soft_cap": 0.0, "tables_ready": True}
    ) | {"ASM": True}
    absent = ("sinks", "k_scale", "v_scale", "lse")
    fixed |= {name: None for name in absent if inputs[name] is None}
    words = "*bf16" if dtype == "bfloat16" else "*i16"
    options = {"num_warps": chosen.warps, "num_stages": chosen.stages}
    if chosen.registers:
        options["maxnreg"] = chosen.registers
    known = {"k_pages": words, "v_pages": words}
    return shared_bytes(ASTSource, paged_decode_kernel, fixed, known=known, **options)


def prefill(
    *, page, head_dim, copiers, window=0, tree=False, part=False, persistent=False, tile=0, stages=2
):
    tile = tile or (128 if head_dim <= 128 else 64)
    columns = max(hopper.HOPPER_COLUMNS, head_dim)
    box = min(hopper.box(page), tile)
    fixed = {
        "GROUP": 4, "PAGE": page, "BOX": box, "TILE": tile, "DIM": head_dim, "WIDTH": head_dim,
        "HALF": hopper.HOPPER_ROWS, "STAGES": stages, "WINDOW": window, "CAPPED": False,
        "GROUPS": hopper.groups(head_dim), "PERSISTENT": persistent,
        "COPIERS": copiers, "DEPENDENT": part, "k_scale": None, "v_scale": None,
    }  # fmt: skip
    fixed |= {} if tree else {"tree": None}
    fixed |= {} if part else {"part": None, "part_lse": None}
    known = boxes(k_desc=(box, columns), v_desc=(box, columns)) | {
        "counts": "*i32", "items": "*i32", "tree": "*i64", "part": "*bf16",
        "part_lse": "*fp32",
    }  # fmt: skip
    return shared_bytes(GluonASTSource, prefill_hopper, fixed, known=known)


def state_step(*, delta, state, once, extras):
    fixed = {
        "HEADS": 8, "VALUE_HEADS": 32, "KEY": 128, "VALUE": 64, "COLUMNS": 128, "ROWS": 8,
        "DELTA": delta, "NORMALISED": delta and extras, "GPU": True, "DEPENDENT": True,
    }  # fmt: skip
    absent = (*(("query_starts",) if once else ()),
              *(("bias", "skips") if delta or not extras else ()))  # fmt: skip
    known = dict.fromkeys(("k", "v", "strengths", "decays"), "*bf16") | {
        "states": f"*{state}", "sources": "*i32", "rows": "*i32", "bias": "*fp32", "skips": "*fp32",
    }  # fmt: skip
    fixed |= dict.fromkeys(absent)
    even = ("q_step", "k_step", "v_step", "state_step", "out_step")
    return shared_bytes(ASTSource, take_step, fixed, known=known, even=even, num_warps=1)


COMPILED = {"latent": latent, "narrow": narrow, "fp8": fp8, "sparse": sparse,
            "sparse_wide": sparse_wide, "combine": combine, "portable": portable,
            "prefill": prefill, "state_step": state_step}  # fmt: skip

if __name__ == "__main__":
    launches = [dict(each) for each in json.loads(sys.argv[1])]
    found = [COMPILED[each.pop("kernel")](**each) for each in launches]
    sys.stdout.write(json.dumps(found))
