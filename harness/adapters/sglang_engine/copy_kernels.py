"""SGLang's copy kernels between a pool and the host, for keys and values, as late copies.

Each has the name, the arguments and the layouts of the kernel that it stands for. The bytes move
when the copy ends. A table of pointers leads to the tensors that the tier has noted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from kvproof.harness.adapters.sglang_engine.copy_streams import Copy, current_stream
from kvproof.harness.adapters.sglang_engine.running import RUNNING
from kvproof.harness.whole_engine.findings import IllegalAccess

Index = Callable[[torch.Tensor], tuple[Any, ...]]
"""From slots to the index of their rows in a buffer."""


class Side(NamedTuple):
    """One layer of keys or values, on one side of a copy."""

    buffer: torch.Tensor
    rows: Index


Pairs = Sequence[tuple[Side, Side]]
"""(In the pool, on the host)."""


def _slots(slots: torch.Tensor) -> tuple[Any, ...]:
    return (slots,)


def _page_first(layer: int) -> Index:
    return lambda slots: (slots, layer)


def _page_head(layer: int, page: int) -> Index:
    return lambda slots: (slots // page, slice(None), slots % page, layer)


def _page_first_direct(layer: int, page: int) -> Index:
    return lambda slots: (slots // page, layer, slots % page)


def _copy(pairs: Pairs, pool: torch.Tensor, host: torch.Tensor, *, back: bool) -> None:
    """Submit a copy of slots of the pool; `back`: from the host."""
    ours, theirs = pool.clone().long(), host.clone().long()
    for mine, other in pairs[:1]:
        _check(mine, ours)
        _check(other, theirs)

    def move() -> None:
        for mine, other in pairs:
            if back:
                _put(mine, ours, _get(other, theirs))
            else:
                _put(other, theirs, _get(mine, ours))

    tier, none = RUNNING.tier, list[int]()
    pages = sorted(set((ours // tier.page).tolist()))
    reads, writes = (none, pages) if back else (pages, none)
    current_stream().submit(Copy(move, tier.memory_of(pairs[0][0].buffer), reads, writes))


def _get(side: Side, slots: torch.Tensor) -> torch.Tensor:
    return side.buffer[side.rows(slots)]


def _put(side: Side, slots: torch.Tensor, values: torch.Tensor) -> None:
    side.buffer[side.rows(slots)] = values


def _check(side: Side, slots: torch.Tensor) -> None:
    try:
        _get(side, slots)
    except IndexError as error:
        raise IllegalAccess(f"a copy has slots {slots.tolist()}: {error}") from error


def _of(pointers: Any) -> list[torch.Tensor]:
    return [RUNNING.tier.tensors[each] for each in pointers.tolist()]


def _plain(buffers: Sequence[torch.Tensor]) -> list[Side]:
    return [Side(each, _slots) for each in buffers]


def _zip(pool: Sequence[Side], host: Sequence[Side]) -> Pairs:
    return list(zip(pool, host, strict=True))


def transfer_kv_per_layer(
    *, src_k: Any, dst_k: Any, src_v: Any, dst_v: Any, src_indices: Any, dst_indices: Any, **_: Any
) -> None:
    """Load one layer, layout `layer_first`."""
    pairs = _zip(_plain([dst_k, dst_v]), _plain([src_k, src_v]))
    _copy(pairs, dst_indices, src_indices, back=True)


def transfer_kv_all_layer(
    *,
    src_k_layers: Any,
    dst_k_layers: Any,
    src_v_layers: Any,
    dst_v_layers: Any,
    src_indices: Any,
    dst_indices: Any,
    **_: Any,
) -> None:
    """Back all layers up, layout `layer_first`."""
    pool, host = _of(src_k_layers) + _of(src_v_layers), _of(dst_k_layers) + _of(dst_v_layers)
    _copy(_zip(_plain(pool), _plain(host)), src_indices, dst_indices, back=False)


def transfer_kv_per_layer_pf_lf(
    *, src_k: Any, dst_k: Any, src_v: Any, dst_v: Any, src_indices: Any, dst_indices: Any,
    layer_id: int, **_: Any,
) -> None:  # fmt: skip
    """Load one layer, layout `page_first`."""
    host = [Side(each, _page_first(layer_id)) for each in (src_k, src_v)]
    _copy(_zip(_plain([dst_k, dst_v]), host), dst_indices, src_indices, back=True)


def transfer_kv_all_layer_lf_pf(
    *, src_k_layers: Any, dst_k: Any, src_v_layers: Any, dst_v: Any, src_indices: Any,
    dst_indices: Any, num_layers: int, **_: Any,
) -> None:  # fmt: skip
    """Back all layers up, layout `page_first`."""
    host = [Side(each, _page_first(at)) for each in (dst_k, dst_v) for at in range(num_layers)]
    pool = _plain(_of(src_k_layers) + _of(src_v_layers))
    _copy(_zip(pool, host), src_indices, dst_indices, back=False)


def transfer_kv_per_layer_ph_lf(
    *, src_k: Any, dst_k: Any, src_v: Any, dst_v: Any, src_indices: Any, dst_indices: Any,
    layer_id: int, page_size: int, **_: Any,
) -> None:  # fmt: skip
    """Load one layer, layout `page_head`."""
    host = [Side(each, _page_head(layer_id, page_size)) for each in (src_k, src_v)]
    _copy(_zip(_plain([dst_k, dst_v]), host), dst_indices, src_indices, back=True)


def transfer_kv_all_layer_lf_ph(
    *, src_k_layers: Any, dst_k: Any, src_v_layers: Any, dst_v: Any, src_indices: Any,
    dst_indices: Any, num_layers: int, page_size: int, **_: Any,
) -> None:  # fmt: skip
    """Back all layers up, layout `page_head`."""
    host = [
        Side(each, _page_head(at, page_size)) for each in (dst_k, dst_v) for at in range(num_layers)
    ]
    pool = _plain(_of(src_k_layers) + _of(src_v_layers))
    _copy(_zip(pool, host), src_indices, dst_indices, back=False)


def transfer_kv_direct(
    *, src_layers: Any, dst_layers: Any, src_indices: Any, dst_indices: Any, **_: Any
) -> None:
    """Copy without a kernel, layout `layer_first`: one layer is loaded, all are backed up."""
    back = dst_layers[0].data_ptr() in RUNNING.tier.in_pool
    source, target = _plain(src_layers), _plain(dst_layers)
    if back:
        _copy(_zip(target, source), dst_indices, src_indices, back=True)
    else:
        _copy(_zip(source, target), src_indices, dst_indices, back=False)


def transfer_kv_per_layer_direct_pf_lf(
    *, src_ptrs: Any, dst_ptrs: Any, src_indices: Any, dst_indices: Any, layer_id: int,
    page_size: int,
) -> None:  # fmt: skip
    """Load one layer page by page, layout `page_first_direct`."""
    host = [Side(each, _page_first_direct(layer_id, page_size)) for each in src_ptrs]
    pool, own = _pages(dst_indices, page_size), _pages(src_indices, page_size)
    _copy(_zip(_plain(dst_ptrs), host), pool, own, back=True)


def transfer_kv_all_layer_direct_lf_pf(
    *, src_ptrs: Any, dst_ptrs: Any, src_indices: Any, dst_indices: Any, page_size: int
) -> None:
    """Back all layers up page by page, layout `page_first_direct`."""
    layers = len(src_ptrs) // len(dst_ptrs)
    host = [
        Side(each, _page_first_direct(at, page_size)) for each in dst_ptrs for at in range(layers)
    ]
    pool, own = _pages(src_indices, page_size), _pages(dst_indices, page_size)
    _copy(_zip(_plain(src_ptrs), host), pool, own, back=False)


def _pages(slots: torch.Tensor, page: int) -> torch.Tensor:
    """Return all slots of the pages whose first slots stand at every `page`th place."""
    return (slots[::page, None] + torch.arange(page)).flatten()


KERNELS: tuple[Callable[..., None], ...] = (
    transfer_kv_per_layer,
    transfer_kv_all_layer,
    transfer_kv_per_layer_pf_lf,
    transfer_kv_all_layer_lf_pf,
    transfer_kv_per_layer_ph_lf,
    transfer_kv_all_layer_lf_ph,
    transfer_kv_direct,
    transfer_kv_per_layer_direct_pf_lf,
    transfer_kv_all_layer_direct_lf_pf,
)
