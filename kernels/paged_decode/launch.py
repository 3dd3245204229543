"""The public function: checked arguments, then one launch."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from kvproof.kernels.backend import interpreted, runs_triton, starts_ahead
from kvproof.kernels.checks import dtype_of, last_dim_contiguous, require, same_device, shape_of
from kvproof.kernels.interpreter import let_tensors_bound_loops
from kvproof.kernels.latent import launch as latent
from kvproof.kernels.paged_decode import drafts, rules
from kvproof.kernels.paged_decode.torch_reference import paged_decode_torch
from kvproof.kernels.paged_decode.workspace import (
    Workspace,
    check_room,
    latent_room,
    room,
    workspace,
)

_KINDS = {
    torch.bfloat16: 0, torch.float16: 0, torch.float8_e4m3fn: 1, torch.int8: 2, torch.uint8: 3,
}  # fmt: skip


def paged_decode(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor | None,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
    *,
    out: torch.Tensor,
    scale: float,
    window: int = 0,
    soft_cap: float = 0.0,
    sinks: torch.Tensor | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
    tables_ready: bool = False,
    fp8_queries: bool = False,
    space: Workspace | None = None,
    config: rules.Config | None = None,
) -> None:
    """Attend the last q_tokens positions of each request over its whole cached context.

    Args:
        q: [batch, q_tokens, heads, dim], bfloat16 or float16; position i of q_tokens is the
            request's position length - q_tokens + i and sees itself and all before it. Over
            a cache of one byte it is used as float16, so its values must fit.
        k_pages: [pages, page, kv_heads, dim], any strides but that of dim; of q's dtype,
            float8_e4m3fn or int8; or uint8 for INT4: dim / 2 bytes, column 2i in the low nibble of
            byte i.
        v_pages: [pages, page, kv_heads, value_dim] like `k_pages`, or `None`: the values are the
            first value_dim columns of the keys (MLA).
        block_table: [batch, any] int32, ids of pages; padding is never read.
        lengths: [batch] int32, tokens of each request with its q_tokens; 0 gives zeros.
        out: [batch, q_tokens, heads, value_dim] of q's dtype.
        scale: Logits are q times k times `scale`.
        window: A position sees itself and the window - 1 before it; 0 sees all.
        soft_cap: Logits become soft_cap * tanh(logits / soft_cap); 0 leaves them.
        sinks: [heads] float32, a logit per head that takes weight and adds no value.
        k_scale: float32 [kv_heads] for float8, [pages, page, kv_heads] for int8; for INT4 likewise,
            and the low 4 bits of each are the zero point, as in vLLM's `int4_per_token_head`: a
            column is its nibble less the zero point, times the scale. Rotations are the caller's.
        v_scale: As `k_scale`; `None` with MLA takes that of the keys.
        lse: [batch, q_tokens, heads] float32, any strides, written: natural logarithms of the sums
            of the exponentials of logits, that of the sink among them; minus infinity for a
            position that sees nothing and has no sink.
        tables_ready: Neither block_table nor lengths is written by the kernel launched right
            before, as in every layer of a model but the first; so they are read while it ends.
        fp8_queries: Queries may be rounded to float8_e4m3 where that is faster, as engines do:
            errors of 3e-2 instead of 2e-3. Latent float8 pages on Hopper; elsewhere no difference.
        space: See `workspace`; without it one is made, which costs two fills.
        config: Another shape of the launch than the rules choose, of the portable kernel.

    Many query rows of a KV head, as 16 drafts have, go to the kernel that attends steps of engines
    if it can copy the pages.

    Latent rows of 576 columns, 512 of them values, go to a kernel of their own on Hopper, if there
    is neither window nor soft cap: pages of q's dtype with a size that 8 divides, and pages of
    float8_e4m3fn with q in bfloat16.

    Raises:
        ArgumentError: An argument does not fit the others.

    """
    v_scale = k_scale if v_pages is None else v_scale
    tensors = {
        "q": q, "k_pages": k_pages, "v_pages": v_pages, "block_table": block_table,
        "lengths": lengths, "out": out, "sinks": sinks, "k_scale": k_scale, "v_scale": v_scale,
        "lse": lse,
    }  # fmt: skip
    _check(tensors)
    require(window >= 0, f"window is {window}, expected 0 for none or a number of tokens")
    require(soft_cap >= 0, f"soft_cap is {soft_cap}, expected 0 for none or a bound")
    numbers: dict[str, Any] = {"scale": scale, "window": window, "soft_cap": soft_cap}
    ready = {"tables_ready": tables_ready, "fp8_queries": fp8_queries}
    if not q.numel():
        return
    if not runs_triton(q):
        paged_decode_torch(**tensors, **numbers)
        return
    _launch(tensors, numbers | ready, space, config)


def shape_of_problem(
    q: torch.Tensor, k_pages: torch.Tensor, v_pages: torch.Tensor | None, out: torch.Tensor
) -> rules.Shape:
    """The shape that rules and workspaces go by."""
    batch, q_tokens, heads, head_dim = q.shape
    return rules.Shape(
        batch=batch,
        q_tokens=q_tokens,
        heads=heads,
        kv_heads=k_pages.shape[2],
        head_dim=head_dim,
        value_dim=out.shape[-1],
        kv_bits=rules.kv_bits(k_pages),
        latent=v_pages is None,
    )


def _launch(
    tensors: dict[str, Any],
    numbers: dict[str, Any],
    space: Workspace | None,
    config: rules.Config | None,
) -> None:
    q = tensors["q"]
    shape = shape_of_problem(*(tensors[name] for name in ("q", "k_pages", "v_pages", "out")))
    if config is None and drafts.takes(tensors, shape):
        drafts.launch(tensors, numbers)
        return
    if config is None and latent.takes(tensors, numbers):
        _launch_latent(tensors, numbers, space or workspace(shape, device=q.device), shape)
        return
    if interpreted():
        let_tensors_bound_loops()
    from kvproof.kernels.paged_decode.triton_kernel import paged_decode_kernel

    chosen = config or rules.config(shape)
    if not starts_ahead(q.device):
        chosen = chosen._replace(pdl=0, ahead=0)
    elif tensors["lse"] is not None:
        # A kernel that merges parts follows, and needs this one's.
        chosen = chosen._replace(pdl=min(chosen.pdl, 1) * 2)
    processors = rules.processors(q.device)
    space = space or workspace(shape, device=q.device, config=chosen)
    check_room(space, room(shape, chosen, processors=processors))
    chunks = rules.chunks(shape, chosen, processors=processors)
    keys = _words(tensors["k_pages"])
    values = keys if tensors["v_pages"] is None else _words(tensors["v_pages"])
    paged_decode_kernel[(chunks * rules.head_blocks(shape, chosen),)](
        q, keys, values, tensors["block_table"], tensors["lengths"], tensors["out"],
        tensors["lse"], tensors["sinks"], tensors["k_scale"], tensors["v_scale"], *space,
        numbers["scale"], numbers["soft_cap"], numbers["window"], shape.batch,
        chunks, rules.places(shape, chosen, processors=processors),
        tensors["block_table"].stride(0),
        **constants(shape, chosen, tensors, numbers),
        **_options(chosen),
    )  # fmt: skip


def _launch_latent(
    tensors: dict[str, Any], numbers: dict[str, Any], space: Workspace, shape: rules.Shape
) -> None:
    """The kernel for wide latent heads; it needs no arrivals."""
    check_room(space, latent_room(shape, processors=rules.processors(tensors["q"].device)))
    latent.launch(tensors, numbers, parts=space.parts, norms=space.norms)


def constants(
    shape: rules.Shape, chosen: rules.Config, tensors: dict[str, Any], numbers: dict[str, Any]
) -> dict[str, int | bool]:
    """The compile-time constants of a launch; of tensors only their shapes, strides and dtypes."""
    keys = rules.columns(shape.head_dim, kv_bits=shape.kv_bits)
    values = rules.value_columns(shape.value_dim, kv_bits=shape.kv_bits)
    real = not interpreted()
    return {
        **_strides(tensors),
        "PAGE": tensors["k_pages"].shape[1], "KV": _KINDS[tensors["k_pages"].dtype],
        "GROUP": shape.heads // shape.kv_heads, "Q_TOKENS": shape.q_tokens,
        "K_WORDS": keys.words, "K_MAIN": keys.main, "K_REST": keys.rest,
        "V_WORDS": values.words, "V_MAIN": values.main, "V_REST": values.rest,
        "SHARED": shape.latent and values.words == values.main == keys.main,
        "HAS_WINDOW": numbers["window"] > 0, "HAS_CAP": numbers["soft_cap"] > 0,
        "HAS_SINKS": tensors["sinks"] is not None, "BATCH": rules.power_of_two(shape.batch),
        "HEAD_BLOCKS": rules.head_blocks(shape, chosen),
        "ROW_BLOCKS": rules.row_blocks(shape, chosen), "ROWS": chosen.rows, "TILE": chosen.tile,
        "UNIT": rules.UNIT, "LEAST_UNITS": chosen.least_units, "STAGES": chosen.stages,
        "PART_ROWS": rules.part_rows(shape, rows=chosen.rows), "PART_STEP": chosen.part_step,
        "ROW_STEP": chosen.row_step, "FAN": chosen.fan, "GPU": real, "ASM": real and _speaks_ptx(),
        "AHEAD": chosen.ahead if numbers["tables_ready"] else 0,
        "EARLY": numbers["tables_ready"], "PDL": chosen.pdl,
    }  # fmt: skip


def _strides(tensors: dict[str, Any]) -> dict[str, int]:
    """Strides in elements; of a cache of one byte, in words of two.

    They are constants, because a program mostly computes addresses of tiles.
    """
    width = 2 // tensors["k_pages"].dtype.itemsize
    caches = {"K": tensors["k_pages"], "V": tensors["v_pages"]}
    caches["V"] = caches["K"] if caches["V"] is None else caches["V"]
    lse = tensors["lse"]
    found = {
        **_named("Q", ("BATCH", "TOKEN", "HEAD"), tensors["q"].stride()),
        **_named("OUT", ("BATCH", "TOKEN", "HEAD"), tensors["out"].stride()),
        **_named("LSE", ("BATCH", "TOKEN", "HEAD"), lse.stride() if lse is not None else (0,) * 3),
    }
    for name, pages in caches.items():
        steps = tuple(step // width for step in pages.stride())
        scale = tensors[f"{name.lower()}_scale"]
        whole = (0, 0, 0) if scale is None or scale.dim() == 1 else scale.stride()
        found |= _named(name, ("PAGE", "TOKEN", "HEAD"), steps)
        found |= _named(f"{name}S", ("PAGE", "TOKEN", "HEAD"), whole)
    return found


def _named(name: str, axes: tuple[str, ...], steps: tuple[int, ...]) -> dict[str, int]:
    return {f"{name}_{axis}": step for axis, step in zip(axes, steps[:3], strict=True)}


def _options(chosen: rules.Config) -> dict[str, Any]:
    options: dict[str, Any] = {"num_warps": chosen.warps, "num_stages": chosen.stages}
    if interpreted():
        return options
    if chosen.registers:
        options["maxnreg"] = chosen.registers
    return {**options, "launch_pdl": chosen.pdl > 0}


@cache
def _speaks_ptx() -> bool:
    """Whether the GPU has the instruction that converts float8 to float16."""
    if torch.version.hip is not None or not torch.cuda.is_available():
        return False
    return bool(torch.cuda.get_device_capability() >= (8, 9))


def _words(pages: torch.Tensor) -> torch.Tensor:
    """Pages of one byte as 16-bit words, two columns each; no copy."""
    return pages if pages.dtype.itemsize == 2 else pages.view(torch.int8).view(torch.int16)


def _check(tensors: dict[str, Any]) -> None:
    """Every tensor against the shapes of q and k_pages."""
    q, keys, values, out = (tensors[name] for name in ("q", "k_pages", "v_pages", "out"))
    require(q.dim() == 4, f"q has shape {tuple(q.shape)}, expected (batch, q_tokens, heads, dim)")
    batch, q_tokens, heads, dim = q.shape
    require(
        1 <= q_tokens <= rules.MOST_QUERY_TOKENS,
        f"q has {q_tokens} query tokens a request, expected 1 to {rules.MOST_QUERY_TOKENS}",
    )
    dtype_of("q", q, (torch.bfloat16, torch.float16))
    in_page = rules.kv_bits(keys) / (8 * keys.itemsize)
    require(
        keys.dtype != torch.uint8 or dim % 4 == out.shape[-1] % 4 == 0,
        f"heads have {dim} and {out.shape[-1]} columns, expected multiples of 4 for INT4",
    )
    shape_of("k_pages", keys, (None, None, None, int(dim * in_page)))
    kv_heads = keys.shape[2]
    require(
        kv_heads > 0 and heads % kv_heads == 0,
        f"q has {heads} heads, expected a multiple of the {kv_heads} heads of k_pages",
    )
    shape_of("block_table", tensors["block_table"], (batch, None))
    shape_of("lengths", tensors["lengths"], (batch,))
    shape_of("out", out, (batch, q_tokens, heads, None))
    require(
        dim <= rules.MOST_HEAD_DIM and out.shape[-1] <= rules.MOST_HEAD_DIM,
        f"heads have {dim} and {out.shape[-1]} columns, expected at most {rules.MOST_HEAD_DIM}",
    )
    _check_cache("k_pages", keys, q)
    if values is None:
        require(out.shape[-1] <= dim, f"out has {out.shape[-1]} columns, the keys only {dim}")
    else:
        shape_of("v_pages", values, (*keys.shape[:3], int(out.shape[-1] * in_page)))
        dtype_of("v_pages", values, (keys.dtype,))
        _check_cache("v_pages", values, q)
    for name in ("block_table", "lengths"):
        dtype_of(name, tensors[name], (torch.int32,))
        last_dim_contiguous(name, tensors[name])
    dtype_of("out", out, (q.dtype,))
    last_dim_contiguous("q", q)
    last_dim_contiguous("out", out)
    if tensors["lse"] is not None:
        shape_of("lse", tensors["lse"], (batch, q_tokens, heads))
        dtype_of("lse", tensors["lse"], (torch.float32,))
    _check_scales(tensors, heads)
    same_device(**tensors)


def _check_cache(name: str, pages: torch.Tensor, q: torch.Tensor) -> None:
    dtype_of(name, pages, (q.dtype, torch.float8_e4m3fn, torch.int8, torch.uint8))
    last_dim_contiguous(name, pages)
    if pages.dtype.itemsize == 1:
        even = (pages.shape[3], pages.storage_offset(), *pages.stride()[:3])
        require(
            all(number % 2 == 0 for number in even),
            f"{name} has shape {tuple(pages.shape)}, strides {pages.stride()} and offset"
            f" {pages.storage_offset()}: rows of one-byte elements must begin and end at even ones",
        )


def _check_scales(tensors: dict[str, Any], heads: int) -> None:
    keys = tensors["k_pages"]
    each = keys.shape[:3]
    wanted = {
        torch.float8_e4m3fn: keys.shape[2:3], torch.int8: each, torch.uint8: each,
    }.get(keys.dtype)  # fmt: skip
    for name in ("k_scale", "v_scale"):
        scale = tensors[name]
        require(
            (scale is None) == (wanted is None),
            f"{name} is {'missing' if scale is None else 'given'} with a cache of {keys.dtype}",
        )
        if scale is not None and wanted is not None:
            shape_of(name, scale, wanted)
            dtype_of(name, scale, (torch.float32,))
    if tensors["sinks"] is not None:
        shape_of("sinks", tensors["sinks"], (heads,))
        dtype_of("sinks", tensors["sinks"], (torch.float32,))
