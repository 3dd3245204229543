"""The formats that engines ship, as their own sources state them.

Sources: the docstring of `flash_mla_with_kvcache` and the note in `flashmla_sparse.py`, both of
vLLM 0.33.0, its writers of these pages, and `tests/quant.py` of FlashMLA (9241ae3). Left out for
want of such a source: NVFP4 pages of ordinary heads (their scales' order differs between the
kernels that read them), TurboQuant, Octave and UltraQuant.
"""

from __future__ import annotations

from kvproof.kernels.page_formats.declare import BITS, Field, PageFormat, Part

_LATENT = 512
_ROPE = 64


def _v32() -> PageFormat:
    """DeepSeek V3.2, 656 bytes: 512 FP8, 4 float32 scales of 128 each, 64 bfloat16 (rotary)."""
    row = 656
    values = Field("float8_e4m3", _LATENT, 0, row)
    scales = Field("float32", 4, 512, row)
    rope = Field("bfloat16", _ROPE, 528, row)
    return PageFormat(
        name="mla-v3.2", version=1, parts=(Part(values, scales, least=1e-30), Part(rope))
    )


def _v4() -> PageFormat:
    """DeepSeek V4, 584 bytes: 448 FP8 and 64 bfloat16 of all tokens, then the scales of all.

    A token's scales are 7 powers of two, of 64 columns each, and a byte of zero.
    """
    values, rope = Field("float8_e4m3", 448, 0, 576), Field("bfloat16", _ROPE, 448, 576)
    scales = Field("float8_e8m0", 7, 0, 8, behind=576)
    return PageFormat(
        name="mla-v4", version=1, parts=(Part(values, scales, least=1e-4), Part(rope)),
        alignment=576,
    )  # fmt: skip


def _v41(dtype: str, scale: str, version: int) -> PageFormat:
    """DeepSeek V4.1: 512 values, then scales of 32 (FP8) or 16 (FP4) columns each.

    Version 1: the values of all tokens of a page, then the scales of all. Version 2, since the
    release of 30 September 2026: each token's scales after its values. The bytes of a token are as
    many in both, so readers of one do not notice the other.
    """
    data = _LATENT * BITS[dtype] // 8
    count = 16 if dtype == "float8_e4m3" else 32
    apart = version == 1
    values = Field(dtype, _LATENT, 0, data if apart else data + count)
    scales = Field(scale, count, 0, count, behind=data)
    if not apart:
        scales = Field(scale, count, data, data + count)
    name = "mla-v4.1" if dtype == "float8_e4m3" else "mla-v4.1-fp4"
    least = 2.0**-9 if scale == "float8_e4m3" else 1e-4 / 448
    return PageFormat(name=name, version=version, parts=(Part(values, scales, least),))


def _nvfp4() -> PageFormat:
    """352 bytes: 512 FP4, 64 FP8 without scales (rotary), 32 FP8 scales of 16 columns each.

    Scale s lies at byte 8 * (s % 4) + s // 4 of its 32; vLLM's note and writers state it,
    FlashMLA's docstring does not.
    """
    row = 352
    order = tuple(8 * (scale % 4) + scale // 4 for scale in range(32))
    values, rope = Field("float4_e2m1", _LATENT, 0, row), Field("float8_e4m3", _ROPE, 256, row)
    scales = Field("float8_e4m3", 32, 320, row, order=order)
    return PageFormat(
        name="mla-nvfp4", version=1, parts=(Part(values, scales, least=2.0**-9), Part(rope))
    )


def _indexer() -> PageFormat:
    """Keys of the indexer, 132 bytes: 128 FP8 of all tokens, then a float32 scale of each."""
    values = Field("float8_e4m3", 128, 0, 128)
    scales = Field("float32", 1, 0, 4, behind=128)
    return PageFormat(name="indexer-v3.2", version=1, parts=(Part(values, scales, least=1e-30),))


def per_token_head(dtype: str, head_dim: int) -> PageFormat:
    """Keys, their scale, values, their scale, for each token and KV head.

    `dtype` is `int8` or `float8_e4m3`, each with a float32 scale, or `uint4`, whose float32 holds
    a zero point too. Columns of `uint4` are rotated by the engine (a Hadamard transform with
    fixed signs), not keys and values themselves: the rotation is no matter of bytes.
    """
    scale = "float32 with a zero point" if dtype == "uint4" else "float32"
    side = head_dim * BITS[dtype] // 8
    row = 2 * (side + 4)
    parts = tuple(
        Part(Field(dtype, head_dim, at, row), Field(scale, 1, at + side, row), least=1e-6)
        for at in (0, side + 4)
    )
    name = f"per-token-head-{dtype}-{head_dim}"
    return PageFormat(name=name, version=1, parts=parts, per_head=True)


_DECLARED = (
    _v32(),
    _v4(),
    _v41("float8_e4m3", "float8_e8m0", 1),
    _v41("float8_e4m3", "float8_e8m0", 2),
    _v41("float4_e2m1", "float8_e4m3", 1),
    _v41("float4_e2m1", "float8_e4m3", 2),
    _nvfp4(),
    _indexer(),
    *(per_token_head(kind, 128) for kind in ("int8", "float8_e4m3", "uint4")),
)

FORMATS: dict[str, PageFormat] = {f"{each.name}/{each.version}": each for each in _DECLARED}
"""Name and version -> format. Heads of other widths: `per_token_head`."""
