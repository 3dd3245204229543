"""How the engines move keys, values and states, and take steps, with their own parameters."""

# ruff: noqa: FBT002, N803 - the parameters are called and passed as the engines have them

from __future__ import annotations

import ctypes
import enum
import types

from kvproof.suites.tests.kernels.kernel_kit import torch
from kvproof.suites.tests.kernels.peer_attention import QuantPolicy


def lmdeploy_fill(
    k_states, v_states, k_caches, v_caches, q_start_loc, q_seq_length, kv_seq_length,
    max_q_seq_length, block_offsets, k_scales_zeros=None, v_scales_zeros=None,
    quant_policy=QuantPolicy.NONE, kv_layout="bshd",
):  # fmt: skip
    assert max_q_seq_length == int(q_seq_length.max())
    for states, caches in ((k_states, k_caches), (v_states, v_caches)):
        if states is None:
            continue
        pages = caches if kv_layout == "bshd" else caches.transpose(1, 2)
        each = zip(q_start_loc, q_seq_length, kv_seq_length, strict=True)
        for request, (first, new, length) in enumerate(each):
            for i in range(int(new)):
                page, offset = divmod(int(length - new) + i, pages.shape[1])
                pages[block_offsets[request, page], offset] = states[first + i]


def vllm_fill(key, value, key_cache, value_cache, slot_mapping, kv_cache_dtype, k_scale, v_scale):
    assert kv_cache_dtype == "auto"
    for states, pages in ((key, key_cache), (value, value_cache)):
        for token, slot in enumerate(slot_mapping.tolist()):
            if slot >= 0:
                pages[slot // pages.shape[1], slot % pages.shape[1]] = states[token]


def batch_memcpy(src_ptrs, dst_ptrs, sizes):
    for source, target, size in zip(src_ptrs, dst_ptrs, sizes, strict=True):
        ctypes.memmove(int(target), int(source), int(size))


def vllm_delta(
    q, k, v, g, beta, scale, initial_state,
    inplace_final_state=True,
    cu_seqlens=None, ssm_state_indices=None, num_accepted_tokens=None,
    use_qk_l2norm_in_kernel=False,
):  # fmt: skip
    """Also writes the state behind each token to its row; row 0 stands for none."""
    out = q.new_empty(1, *v.shape)
    group = v.shape[2] // q.shape[2]
    for request, rows in enumerate(ssm_state_indices.tolist()):
        read = rows[int(num_accepted_tokens[request]) - 1]
        state = initial_state[read].double()
        for number, token in enumerate(range(*cu_seqlens[request : request + 2].tolist())):
            query, key = (
                each[0, token].double().repeat_interleave(group, 0)[..., None] for each in (q, k)
            )
            if use_qk_l2norm_in_kernel:
                query, key = (each / each.norm(dim=1, keepdim=True) for each in (query, key))
            state = state * g[0, token].double().exp()[:, None, None]
            error = v[0, token].double()[..., None] - state @ key
            state = state + beta[0, token].double()[:, None, None] * error @ key.mT
            out[0, 0, token] = (state @ query)[..., 0] * scale
            if rows[number] > 0:
                initial_state[rows[number]] = state
    return out.squeeze(0), initial_state


def vllm_mamba2(
    state, x, dt, A, B, C, D, dt_bias,
    z=None, dt_softplus=False,
    state_batch_indices=None, dst_state_batch_indices=None, null_block_id=0, out=None,
    num_accepted_tokens=None, cu_seqlens=None,
    is_blackwell=False, enable_stochastic_rounding=False,
    cache_philox_rounds=0,
):  # fmt: skip
    """One token a request, or several; of one the state is written whatever its row."""
    assert dt_softplus
    starts = range(len(x) + 1) if cu_seqlens is None else cu_seqlens.tolist()
    group = x.shape[1] // B.shape[1]
    for request, read in enumerate(state_batch_indices[:, 0].tolist()):
        now = state[read].double()
        for number, token in enumerate(range(starts[request], starts[request + 1])):
            time = torch.nn.functional.softplus(dt[token].double() + dt_bias.double())[..., None]
            b, c = (each[token].double().repeat_interleave(group, 0)[:, None] for each in (B, C))
            now = now * (time * A.double()).exp() + time * x[token].double()[..., None] * b
            out[token] = (now * c).sum(-1) + D.double() * x[token].double()
            row = int(dst_state_batch_indices[request, number])
            if cu_seqlens is None or row != null_block_id:
                state[row] = now


def sglang_store(k, v, k_cache, v_cache, indices, *, reserved_skip_index=0):
    assert reserved_skip_index == -1
    assert int(indices.min()) >= 0
    k_cache[indices] = k
    v_cache[indices] = v


def flashinfer_append(
    append_key, append_value, batch_indices, positions, paged_kv_cache, kv_indices, kv_indptr,
    kv_last_page_len, kv_layout="NHD",
):  # fmt: skip
    for states, pages in zip((append_key, append_value), paged_kv_cache, strict=True):
        view = pages if kv_layout == "NHD" else pages.transpose(1, 2)
        for token, (request, at) in enumerate(zip(batch_indices, positions, strict=True)):
            page = kv_indices[kv_indptr[request] + at // view.shape[1]]
            view[page, at % view.shape[1]] = states[token]


class EngineKVFormat(enum.IntEnum):
    NL_X_TWO_NB_BS_NH_HS = 1
    NL_X_NB_TWO_BS_NH_HS = 2
    NL_X_NB_BS_HS = 3
    NL_X_TWO_NB_NH_BS_HS = 6
    NL_X_NB_TWO_NH_BS_HS = 7
    NL_X_NB_NH_BS_CS = 12
    NL_X_NB_BS_NH_CS = 13
    NL_X_NB_BSV_BSS = 14


class TransferDirection(enum.IntEnum):
    H2D = 0
    D2H = 1


class PageBufferShapeDesc(types.SimpleNamespace):
    pass


def lmcache_transfer(
    paged_buffer_ptrs_tensor, lmcache_objects_ptrs, block_ids, device, direction, shape_desc,
    lmcache_chunk_size, engine_kv_format, skip_prefix_n_blocks,
):  # fmt: skip
    """Byte by byte, from the addresses of the layers and of at most four objects."""
    d = shape_desc
    assert len(lmcache_objects_ptrs) <= 4
    assert (d.element_size, d.block_stride_elems) == (1, 0)
    blocks = lmcache_chunk_size // d.bs
    assert len(block_ids) == blocks * len(lmcache_objects_ptrs)
    row, layers = d.nh * d.hs, paged_buffer_ptrs_tensor.tolist()
    for number, page in enumerate(block_ids.tolist()):
        if number < skip_prefix_n_blocks:
            continue
        item, block = divmod(number, blocks)
        for kv in range(d.kv_size):
            for layer, start in enumerate(layers):
                for at in range(d.bs):
                    token = (kv * d.nl + layer) * lmcache_chunk_size + block * d.bs + at
                    here = lmcache_objects_ptrs[item] + token * row
                    for offset, where, size in lmcache_runs(d, engine_kv_format, kv, page, at):
                        pair = (here + offset, start + where)
                        ctypes.memmove(*(pair if direction else pair[::-1]), size)


def lmcache_runs(d, layout, kv, page, at):
    """(offset in a token's row, offset in a layer, bytes) of what lies together."""
    row, name = d.nh * d.hs, EngineKVFormat(layout).name
    if name == "NL_X_NB_BSV_BSS":
        base = page * d.bs * row
        yield 0, base + at * (row - 4), row - 4
        yield row - 4, base + d.bs * (row - 4) + at * 4, 4
        return
    plane = page * 2 + kv if "NB_TWO" in name else kv * d.nb + page
    if "NH_BS" in name:
        for head in range(d.nh):
            yield head * d.hs, ((plane * d.nh + head) * d.bs + at) * d.hs, d.hs
    else:
        yield 0, (plane * d.bs + at) * row, row
