"""Attention of the engines in plain torch, with the engines' own parameters."""

# ruff: noqa: FBT002, N803 - the parameters are called and passed as the engines have them

from __future__ import annotations

import enum
from itertools import pairwise

import torch

from kvproof.kernels.indexer.torch_reference import scores_of
from kvproof.kernels.paged_prefill.torch_reference import attend
from kvproof.kernels.sparse_latent.torch_reference import sparse_latent_torch


class QuantPolicy(enum.IntEnum):
    NONE = 0
    INT8 = 8
    FP8 = 16


class KVQuantMode(enum.IntEnum):
    NONE = 0
    FP8_PER_TENSOR = 1
    INT8_PER_TOKEN_HEAD = 2


def gathered(pages, row, length, scale=None):
    """The first tokens of a request, [length, heads, dim] in float64."""
    ids = row[: -(-length // pages.shape[1])].long()
    tokens = pages[ids].flatten(0, 1)[:length].double()
    if scale is None:
        return tokens
    return tokens * scale[ids].flatten(0, 1)[:length, :, None]


def look(q, k, v, *, scale, window, cap, sinks):
    if not len(q):
        return q[..., : v.shape[-1]].double()
    # A head of the values may be narrower than one of the keys.
    wide = torch.nn.functional.pad(v, (0, k.shape[-1] - v.shape[-1]))
    found, _ = attend(
        q.double(), k, wide, scale=scale, window=window, soft_cap=max(cap, 0.0), sinks=sinks
    )
    return found[..., : v.shape[-1]]


def lmdeploy_decode(
    q, k_cache, v_cache, cache_seqlens, page_table, softmax_scale=None, window_size=None,
    softcap=None, k_scales_zeros=None, v_scales_zeros=None, quant_policy=QuantPolicy.NONE,
    sinks=None,
):  # fmt: skip
    out = q.new_empty((*q.shape[:-1], v_cache.shape[-1]))
    for request, length in enumerate(cache_seqlens.tolist()):
        k = lmdeploy_tokens(k_cache, page_table[request], length, k_scales_zeros, quant_policy)
        v = lmdeploy_tokens(v_cache, page_table[request], length, v_scales_zeros, quant_policy)
        out[request] = look(
            q[request, None], k, v, scale=softmax_scale, window=window_size + 1, cap=softcap,
            sinks=sinks,
        )[0]  # fmt: skip
    return out


def lmdeploy_tokens(cache, row, length, scales_zeros, policy):
    if policy != QuantPolicy.INT8:
        one = 1.0 if scales_zeros is None else float(scales_zeros.flatten()[0])
        return gathered(cache, row, length) * one
    assert cache.dtype == torch.uint8
    zeros, scales = scales_zeros[..., 1], scales_zeros[..., 0]
    return gathered(cache.double() - zeros[..., None], row, length, scales)


def lmdeploy_flatten(
    k_caches, v_caches, seqlens, block_offsets, start_loc=None, out_size=None, out_dtype=None,
    k_scales_zeros=None, v_scales_zeros=None, quant_policy=QuantPolicy.NONE,
):  # fmt: skip
    made = []
    for cache, scales in ((k_caches, k_scales_zeros), (v_caches, v_scales_zeros)):
        flat = torch.zeros((cache.shape[2], out_size, cache.shape[3]), dtype=out_dtype)
        for row, start, length in zip(block_offsets, start_loc, seqlens.tolist(), strict=True):
            tokens = lmdeploy_tokens(cache, row, length, scales, quant_policy)
            flat[:, start : start + length] = tokens.transpose(0, 1).to(out_dtype)
        made.append(flat)
    return made


def lmdeploy_prefill(
    q, k, v, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, max_seqlen_k=None,
    softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, sinks=None,
):  # fmt: skip
    assert causal
    out = q.new_empty(*q.shape[:-1], v.shape[-1])
    rows, tokens = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    assert max_seqlen_q == max(b - a for a, b in pairwise(rows))
    for i in range(len(rows) - 1):
        mine, seen = slice(rows[i], rows[i + 1]), slice(tokens[i], tokens[i + 1])
        keys, values = (side[:, seen].transpose(0, 1).double() for side in (k, v))
        out[mine] = look(
            q[mine], keys, values, scale=softmax_scale, window=window_size + 1, cap=softcap,
            sinks=sinks,
        )  # fmt: skip
    return out


def vllm_attention(
    q, k, v, out, cu_seqlens_q, max_seqlen_q, seqused_k, max_seqlen_k, softmax_scale, causal,
    window_size, block_table, softcap, q_descale, k_descale, v_descale, seq_threshold_3D=None,
    num_par_softmax_segments=None, softmax_segm_output=None, softmax_segm_max=None,
    softmax_segm_expsum=None, sinks=None, kv_quant_mode=KVQuantMode.NONE, k_scale_cache=None,
    v_scale_cache=None,
):  # fmt: skip
    assert causal
    assert q_descale is None
    if max_seqlen_q <= 8:
        assert softmax_segm_max.shape == (*softmax_segm_output.shape[:3],)
        assert len(softmax_segm_max) >= len(q)
        assert softmax_segm_max.shape[2] == num_par_softmax_segments
        assert seq_threshold_3D > 0
    for i, mine, length in requests_of(cu_seqlens_q, seqused_k):
        scales = (k_scale_cache, v_scale_cache)
        keys, values = (
            gathered(pages, block_table[i], length, scale)
            for pages, scale in zip((k, v), scales, strict=True)
        )
        if kv_quant_mode != KVQuantMode.INT8_PER_TOKEN_HEAD:
            keys, values = keys * float(k_descale[i, 0]), values * float(v_descale[i, 0])
        out[mine] = look(
            q[mine], keys, values, scale=softmax_scale, window=window_size[0] + 1, cap=softcap,
            sinks=sinks,
        )  # fmt: skip
    assert max_seqlen_k == int(seqused_k.max())


def vllm_int4_attention(
    *, q, k_cache, v_cache, out, cu_seqlens_q, max_seqlen_q, seqused_k, softmax_scale, window_size,
    block_table, softcap, sinks, alibi_slopes, use_alibi_sqrt, qq_bias, output_scale,
    mm_prefix_range, k_scale_cache, v_scale_cache, seq_threshold_3D, num_par_softmax_segments,
    softmax_segm_output, softmax_segm_max, softmax_segm_expsum, packing_factor,
):  # fmt: skip
    assert packing_factor == 2
    assert not any((use_alibi_sqrt, alibi_slopes, qq_bias, output_scale, mm_prefix_range))
    assert softmax_segm_max.shape == softmax_segm_expsum.shape == softmax_segm_output.shape[:3]
    assert max_seqlen_q > 0 < seq_threshold_3D * num_par_softmax_segments
    for i, mine, length in requests_of(cu_seqlens_q, seqused_k):
        found = []
        for pages, scale in ((k_cache, k_scale_cache), (v_cache, v_scale_cache)):
            bits = scale.view(torch.int32)
            levels = torch.stack((pages & 15, pages >> 4), -1).flatten(-2).double()
            numbers = (levels - (bits & 15)[..., None]) * (bits & -16).view(torch.float32)[
                ..., None
            ]
            found.append(gathered(numbers, block_table[i], length))
        out[mine] = look(
            q[mine], *found, scale=softmax_scale, window=window_size[0] + 1, cap=softcap,
            sinks=sinks,
        )  # fmt: skip


def requests_of(cu_seqlens_q, lengths):
    rows = cu_seqlens_q.tolist()
    for i, length in enumerate(lengths.tolist()):
        yield i, slice(rows[i], rows[i + 1]), length


def flash_attention(
    q, k, v, max_seqlen_q, cu_seqlens_q, max_seqlen_k, seqused_k=None, softmax_scale=None,
    causal=False, window_size=None, softcap=0.0, block_table=None, out=None,
    scheduler_metadata=None, fa_version=2, s_aux=None,
):  # fmt: skip
    assert fa_version == 3
    assert causal
    for i, mine, length in requests_of(cu_seqlens_q, seqused_k):
        keys, values = (gathered(pages, block_table[i], length) for pages in (k, v))
        out[mine] = look(
            q[mine], keys, values, scale=softmax_scale, window=window_size[0] + 1, cap=softcap,
            sinks=s_aux,
        )  # fmt: skip
    return out


def flash_schedule(
    batch_size, max_seqlen_q, max_seqlen_k, num_heads_q, num_heads_kv, headdim, cache_seqlens,
    qkv_dtype=torch.bfloat16, cu_seqlens_q=None, page_size=None, causal=False,
    window_size=(-1, -1), has_softcap=False,
):  # fmt: skip
    return torch.zeros(batch_size + 1, dtype=torch.int32)


def flash_mla_schedule():
    return object(), None


def flash_mla(
    q, k_cache, block_table, cache_seqlens, head_dim_v, tile_scheduler_metadata, num_splits=None,
    softmax_scale=None, causal=False, is_fp8_kvcache=False, indices=None, attn_sink=None, out=None,
):  # fmt: skip
    if indices is not None:
        assert is_fp8_kvcache
        assert not causal
        assert block_table is cache_seqlens is out is None
        assert k_cache.shape[1:] == (64, 1, 656)
        found = q.new_empty(*q.shape[:3], head_dim_v)
        sparse_latent_torch(
            q[:, 0], k_cache[:, :, 0], indices[:, 0], out=found[:, 0], scale=softmax_scale,
            sinks=attn_sink, compute=torch.float64,
        )  # fmt: skip
        return found, None
    assert causal
    assert k_cache.shape[1:] == (64, 1, 576)
    assert out.shape == (len(q), 1, q.shape[1] * q.shape[2], head_dim_v)
    found = out.view(*q.shape[:3], head_dim_v)
    for i, length in enumerate(cache_seqlens.tolist()):
        keys = gathered(k_cache, block_table[i], length)
        found[i] = look(
            q[i], keys, keys[..., :head_dim_v], scale=softmax_scale, window=0, cap=0.0, sinks=None
        )
    return found, None


def flash_mla_sparse(q, kv, indices, sm_scale, d_v=512, attn_sink=None, out=None):
    assert q.shape[1] in (8, 16, 32, 64, 128)
    assert kv.shape[1:] == (1, 576)
    assert indices.shape[1] == 1
    assert indices.shape[2] % 128 == 0
    assert out.shape == (*q.shape[:2], d_v)
    sparse_latent_torch(
        q, kv, indices[:, 0], out=out, scale=sm_scale, sinks=attn_sink, compute=torch.float64
    )
    return out, None, None


def deep_gemm_schedule(context_lens, block_size, num_sms):
    assert context_lens.dtype == torch.int32
    assert block_size in (32, 64)
    return torch.zeros(num_sms + 1, 2, dtype=torch.int32)


def deep_gemm_chunk(q, kv, weights, cu_seqlen_ks, cu_seqlen_ke, max_seqlen_k):
    keys, scales = kv
    assert q[1] is None
    assert keys.dtype == torch.float8_e4m3fn
    assert keys.shape == (len(scales), 128)
    assert not cu_seqlen_ks.any()
    found = torch.full((len(weights), max_seqlen_k), 1e9)  # what nobody cleans
    products = torch.einsum("thd,nd->thn", q[0].float(), keys.float()).relu()
    scores = torch.einsum("thn,th->tn", products, weights) * scales
    for row, mine, end in zip(found, scores, cu_seqlen_ke.tolist(), strict=True):
        row[:end] = mine[:end]
    return found


def deep_gemm_scores(
    q, kv_cache, weights, context_lens, block_tables, schedule_metadata, max_model_len
):
    assert kv_cache.shape[2:] == (1, 132)
    assert q[1] is None
    q_tokens = context_lens.shape[1]
    found = torch.full((len(weights), max_model_len), 1e9)  # what nobody cleans
    rows = zip(q[0], weights.unflatten(0, (-1, q_tokens)), block_tables, strict=True)
    for i, (query, weight, table) in enumerate(rows):
        length = int(context_lens[i, -1])
        scores = scores_of(query, weight, kv_cache[:, :, 0], table, length)
        mine = found[i * q_tokens : (i + 1) * q_tokens, :length]
        mine.copy_(torch.where(scores == -torch.inf, mine, scores))
    return found


def vllm_mla(
    q, k_buffer, v_buffer, o, lse, req_to_token, b_seq_len, attn_logits, num_kv_splits, sm_scale,
    page_size=1, logit_cap=0.0, k_scale=None, v_scale=None, is_mla=False,
):  # fmt: skip
    assert attn_logits.shape == (*q.shape[:2], num_kv_splits, v_buffer.shape[-1] + 1)
    assert lse.shape == q.shape[:2]
    assert page_size == k_buffer.shape[1]
    assert is_mla == (v_buffer.data_ptr() == k_buffer.data_ptr())
    for i, length in enumerate(b_seq_len.tolist()):
        keys, values = (gathered(pages, req_to_token[i], length) for pages in (k_buffer, v_buffer))
        o[i] = look(
            q[i, None], keys * float(k_scale), values * float(v_scale), scale=sm_scale, window=0,
            cap=logit_cap, sinks=None,
        )[0]  # fmt: skip


def sglang_decode(
    q, k_buffer, v_buffer, o, kv_indptr, kv_indices, attn_logits, attn_lse, num_kv_splits,
    max_kv_splits, sm_scale, k_scale, v_scale, logit_cap=0.0, sinks=None, has_mla=False,
    use_pdl=False, page_size=1,
):  # fmt: skip
    assert attn_logits.shape == (*q.shape[:2], max_kv_splits, v_buffer.shape[-1])
    assert attn_lse.shape == attn_logits.shape[:3]
    assert int(num_kv_splits.min()) >= 1
    assert has_mla == (v_buffer.data_ptr() == k_buffer.data_ptr())
    for i, mine in enumerate(pairwise(kv_indptr)):
        slots = kv_indices[mine[0] : mine[1]]
        o[i] = look(
            q[i, None], k_buffer[slots].double() * k_scale, v_buffer[slots].double() * v_scale,
            scale=sm_scale, window=0, cap=logit_cap, sinks=sinks,
        )[0]  # fmt: skip


class Splits:
    """Stands for a Triton kernel, which is launched with a grid."""

    def __getitem__(self, grid):
        assert grid == (1,)
        return self.choose

    def choose(self, splits, lengths, requests, group, heads, kv_heads, most, cores, MAX_NUM_SEQ):
        assert requests == len(lengths) <= MAX_NUM_SEQ
        splits.fill_(most)


def sglang_extend(
    q_extend, k_extend, v_extend, o_extend, k_buffer, v_buffer, qo_indptr, kv_indptr, kv_indices,
    custom_mask, is_causal, mask_indptr, max_len_extend, k_scale, v_scale, sm_scale=None,
    logit_cap=0.0, sliding_window_size=-1, sinks=None, page_size=1,
):  # fmt: skip
    assert is_causal
    assert max_len_extend == int(qo_indptr.diff().max())
    for i in range(len(qo_indptr) - 1):
        mine = slice(int(qo_indptr[i]), int(qo_indptr[i + 1]))
        slots = kv_indices[kv_indptr[i] : kv_indptr[i + 1]]
        keys, values = (
            torch.cat((pool[slots].double() * scale, new[mine].double()))
            for pool, scale, new in (
                (k_buffer, k_scale, k_extend), (v_buffer, v_scale, v_extend),
            )
        )  # fmt: skip
        o_extend[mine] = look(
            q_extend[mine], keys, values, scale=sm_scale, window=sliding_window_size + 1,
            cap=logit_cap, sinks=sinks,
        )  # fmt: skip


class FlashInferDecode:
    def __init__(
        self, float_workspace_buffer, kv_layout="NHD", use_tensor_cores=False, backend="auto"
    ):
        assert kv_layout == "NHD"
        assert backend == ("fa2" if use_tensor_cores else "auto")

    def plan(
        self, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size, *,
        window_left=-1, logits_soft_cap=None, q_data_type="float16", kv_data_type=None,
        sm_scale=None,
    ):  # fmt: skip
        rows = torch.arange(len(indptr))
        self.rest = (rows, indptr, indices, last_page_len, page_size)
        self.how = {"scale": sm_scale, "window": window_left + 1, "cap": logits_soft_cap or 0.0}

    def run(self, q, paged_kv_cache, *, k_scale=None, v_scale=None, out=None):
        rows, starts, indices, last, page = self.rest
        for i in range(len(rows) - 1):
            mine, ids = slice(int(rows[i]), int(rows[i + 1])), indices[starts[i] : starts[i + 1]]
            length = (len(ids) - 1) * page + int(last[i]) if len(ids) else 0
            keys, values = (
                gathered(pages, ids, length) * (scale or 1.0)
                for pages, scale in zip(paged_kv_cache, (k_scale, v_scale), strict=True)
            )
            out[mine] = look(q[mine], keys, values, sinks=None, **self.how)


class FlashInferPrefill(FlashInferDecode):
    def __init__(self, float_workspace_buffer, kv_layout="NHD"):
        assert kv_layout == "NHD"

    def plan(
        self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads,
        num_kv_heads, head_dim_qk, page_size, causal=False, sm_scale=None, window_left=-1,
        logits_soft_cap=None, q_data_type="float16", kv_data_type=None,
    ):  # fmt: skip
        assert causal
        pages = (paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
        self.rest = (qo_indptr, *pages, page_size)
        self.how = {"scale": sm_scale, "window": window_left + 1, "cap": logits_soft_cap or 0.0}
