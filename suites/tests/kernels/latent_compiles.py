"""Compiles latent decode for a Hopper GPU, which need not be there; prints its shared bytes.

A program of its own: the tests run Triton's interpreter, in which nothing is compiled.
"""

import json
import sys

from triton import compile as compiled
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource

from kvproof.kernels.latent import launch
from kvproof.kernels.latent.triton_kernel_combine import latent_combine
from kvproof.kernels.latent.triton_kernel_hopper import latent_decode_hopper
from kvproof.kernels.latent.triton_kernel_narrow import latent_decode_narrow
from kvproof.kernels.latent.triton_kernel_sparse import sparse_latent_hopper

POINTERS = {
    "out": "*bf16", "parts": "*fp32", "norms": "*fp32", "sinks": "*fp32", "block_table": "*i32",
    "lengths": "*i32", "scale": "fp32",
}  # fmt: skip


def shared_bytes(source_of, kernel, fixed, **known):
    types = {**POINTERS, **known}
    names = kernel.arg_names
    signature = {n: "constexpr" if n in fixed else types.get(n, "i32") for n in names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(names)
               if signature[n].startswith("*")}  # fmt: skip
    source = source_of(kernel, signature, {(names.index(n),): v for n, v in fixed.items()}, aligned)
    made = compiled(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
    return made.metadata.shared


def decode(*, page, heads, q_tokens, sinks):
    layout = gl.NVMMASharedLayout(128, 16)
    box = launch.box(page)
    fixed = {
        "HEADS": heads, "Q_TOKENS": q_tokens, "HEAD_BLOCKS": -(-heads * q_tokens // 64),
        "BATCH": 64, "LEAST": launch.LEAST_TILES, "PAGE": page, "BOX": box,
        **({} if sinks else {"sinks": None}),
    }  # fmt: skip
    rows = {"q_desc": (64, 256), "q_rope_desc": (64, 64), "k_desc": (box, 256),
            "rope_desc": (box, 64)}  # fmt: skip
    descriptors = {n: f"tensordesc<bf16[{r}, {c}],{layout!r}>" for n, (r, c) in rows.items()}
    return shared_bytes(GluonASTSource, latent_decode_hopper, fixed, **descriptors)


def narrow(*, page, heads, q_tokens):
    layout = gl.NVMMASharedLayout(128, 16)
    fixed = {
        "HEADS": heads, "Q_TOKENS": q_tokens, "HEAD_BLOCKS": -(-heads * q_tokens // 64),
        "BATCH": 64, "LEAST": launch.LEAST_TILES, "PAGE": page,
    }  # fmt: skip
    rows = {"q_desc": 256, "q_rope_desc": 64}
    descriptors = {n: f"tensordesc<bf16[64, {c}],{layout!r}>" for n, c in rows.items()}
    words = {"pages": "*u8", "pages_scale": "*fp32"}
    return shared_bytes(GluonASTSource, latent_decode_narrow, fixed, **descriptors, **words)


def sparse(*, heads, chosen):
    layout = gl.NVMMASharedLayout(128, 16)
    fixed = {"HEADS": heads, "HEAD_BLOCKS": -(-heads // 64), "LEAST": launch.LEAST_TILES,
             "SIZE": chosen, "SMALL": chosen < 100}  # fmt: skip
    rows = {"q_desc": 256, "q_rope_desc": 64}
    descriptors = {n: f"tensordesc<bf16[64, {c}],{layout!r}>" for n, c in rows.items()}
    words = {"pages": "*u8", "scales": "*fp32", "pages_wide": "*bf16", "indices": "*i32"}
    return shared_bytes(GluonASTSource, sparse_latent_hopper, fixed, **descriptors, **words)


def combine(*, columns, step, each):
    fixed = {
        "NUMBERS": 128, "HEADS": 128, "HEAD_BLOCKS": 2, "BATCH": 64, "LEAST": launch.LEAST_TILES,
        "TILE": 64, "ROWS": 64, "SIZE": 0, "VALUES": 512, "COLUMNS": columns,
        "MOST": 128, "STEP": step, "EACH": each, "PDL": True,
    }  # fmt: skip
    return shared_bytes(ASTSource, latent_combine, fixed)


if __name__ == "__main__":
    found = [
        decode(page=64, heads=128, q_tokens=1, sinks=False),
        decode(page=8, heads=40, q_tokens=4, sinks=True),
        narrow(page=64, heads=128, q_tokens=1),
        narrow(page=12, heads=40, q_tokens=4),
        sparse(heads=128, chosen=2048),
        sparse(heads=40, chosen=65),
        combine(columns=64, step=64, each=1),
        combine(columns=512, step=4, each=8),
    ]
    sys.stdout.write(json.dumps(found))
