"""SGLang's kernels of drafts, which its light environment lacks, by their descriptions."""

from __future__ import annotations

import importlib
from typing import Any


def verify_tree_greedy_cpu(
    *,
    predicts: Any,
    accept_index: Any,
    accept_token_num: Any,
    candidates: Any,
    retrive_index: Any,
    retrive_next_token: Any,
    retrive_next_sibling: Any,
    target_predict: Any,
) -> None:
    """Follow the tree as long as a child is the token that the model would have chosen."""
    wanted = target_predict.flatten().tolist()
    for index, tokens in enumerate(candidates.tolist()):
        places = retrive_index[index].tolist()
        child, sibling = retrive_next_token[index].tolist(), retrive_next_sibling[index].tolist()
        node, accepted = 0, [places[0]]
        while len(accepted) < accept_index.shape[1]:
            follower = child[node]
            while follower >= 0 and tokens[follower] != wanted[accepted[-1]]:
                follower = sibling[follower]
            if follower < 0:
                break
            node = follower
            accepted.append(places[node])
        for number, place in enumerate(accepted):
            accept_index[index, number], predicts[place] = place, wanted[place]
        accept_token_num[index] = len(accepted) - 1


def fill_accept_out_cache_loc_cpu(accept_index: Any, out_cache_loc: Any, accepted: Any) -> None:
    """Gather the slots of the accepted nodes at the front."""
    slots = out_cache_loc[accept_index[accept_index >= 0].long()]
    accepted[: len(slots)] = slots


def assign_extend_cache_locs_cpu(
    rows: Any, table: Any, starts: Any, ends: Any, slots: Any, _: int
) -> None:
    """Read a stretch of each row of the request table."""
    at = 0
    for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist()):  # noqa: B905 - equal by make
        slots[at : at + end - start] = table[row, start:end].to(slots.dtype)
        at += end - start


def assign_req_to_token_pool_cpu(
    rows: Any, table: Any, starts: Any, ends: Any, slots: Any, *_: Any
) -> None:
    """Write a stretch of each row of the request table."""
    at = 0
    for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist()):  # noqa: B905 - equal by make
        table[row, start:end] = slots[at : at + end - start].to(table.dtype)
        at += end - start


def reconstruct_indices_from_tree_mask(
    mask: Any,
    lengths: Any,
    positions: Any,
    places: Any,
    children: Any,
    siblings: Any,
    count: int,
    nodes: int,
) -> None:
    """Derive positions and links of trees from the nodes that each node follows."""
    marks = mask.view(count, nodes, nodes).tolist()
    for index, length in enumerate(lengths.tolist()):
        before = [[at for at in range(node) if marks[index][node][at]] for node in range(nodes)]
        parents = [each[-1] if each else -1 for each in before]
        for node in range(nodes):
            later = range(node + 1, nodes)
            positions[index * nodes + node] = length + len(before[node])
            places[index, node] = index * nodes + node
            children[index, node] = next((at for at in later if node in before[at]), -1)
            alike = (at for at in later if parents[at] == parents[node] >= 0)
            siblings[index, node] = next(alike, -1)


KERNELS = (
    verify_tree_greedy_cpu,
    fill_accept_out_cache_loc_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    reconstruct_indices_from_tree_mask,
)


def install() -> None:
    """Put the kernels into the empty modules, before SGLang takes them from there."""
    for module in ("sgl_kernel", "sgl_kernel.speculative"):
        for kernel in KERNELS:
            setattr(importlib.import_module(module), kernel.__name__, kernel)
