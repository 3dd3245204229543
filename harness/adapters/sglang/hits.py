"""The job by which the suite `hits` reaches SGLang's own trees. Engine environment only.

Contents are inserted by `insert`, with slots of SGLang's own pools; the prompt is looked up by
`Req.init_next_round_input`. A window's blocks that are gone were given back by the request that
inserted them. A run of blocks that leaves no state ends in a page of another prompt: that page has
the state which each insertion leaves.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from kvproof.harness.adapters.sglang.api import engine
from kvproof.harness.adapters.sglang.pools import new_cache
from kvproof.harness.adapters.sglang.profile import profile
from kvproof.harness.contract.hit_index import answered
from kvproof.harness.contract.target import Group, TargetConfig

_MOST_BLOCKS = 80
"""Most blocks of one content in each pool, next to as many pages of other prompts."""
_OTHER = 1 << 20
"""First token of other prompts."""

_UNIFIED = (
    ("full",), ("full", "window"), ("window", "full"), ("full", "state"), ("state", "full"),
    ("full", "window", "state"),
)  # fmt: skip


def hits(arguments: dict[str, Any]) -> dict[str, Any]:
    """Carry out calls on a tree: `traits`, `open`, `hits` (`harness.contract.hit_index`)."""
    traits = {
        "kinds": ("full", "window", "state"), "drafts": False, "reach": "matched",
        "least_window": profile().least_window, "chained": True,
        "layouts": {"rust": _UNIFIED, "python": _UNIFIED, "radix": (("full",),)},
    }  # fmt: skip
    return answered(arguments, traits, Index)


class Index:
    """One tree; it is reset before each content."""

    def __init__(self, groups: list[Group], variant: str) -> None:
        self._kinds = [group.kind for group in groups]
        self._page = groups[0].block_size
        rows = _MOST_BLOCKS if "state" in self._kinds else 0
        blocks = 2 * _MOST_BLOCKS if "window" in self._kinds else _MOST_BLOCKS
        config = TargetConfig(blocks + 1, self._page, groups=tuple(groups), state_rows=rows)
        self._cache = new_cache(config, core=variant)
        self._rows = self._cache.req_to_token_pool
        self._slots = self._cache.token_to_kv_pool_allocator

    def hit(self, limit: int, resident: list[list[int]]) -> tuple[int, list[list[int]]]:
        """Return the hit of a prompt of `limit` + 1 tokens, and the blocks that it names."""
        self._cache.reset()
        self._rows.clear()
        self._slots.clear()
        there = {kind: set(each) for kind, each in zip(self._kinds, resident, strict=True)}
        self._states: dict[int, int] = {}
        self._insert(len(there["full"]), there)
        names = engine()
        request = names.Req("", "", array("q", range(limit + 1)), names.SamplingParams())
        request.init_next_round_input(self._cache)
        hit = int(request.prefix_len)
        return hit, [self._named(kind, request.last_node, hit) for kind in self._kinds]

    def _insert(self, blocks: int, there: dict[str, set[int]]) -> None:
        """Insert runs of blocks with and without their window, then the states."""
        if not blocks:
            return
        row = self._allocated(blocks)
        self._row: list[int] = row.tolist()
        windows, done = there.get("window"), 0
        for kept, run in groupby(range(blocks), lambda at: windows is None or at in windows):
            end = done + len(list(run))
            if not kept:
                self._slots.free_swa(row[done * self._page : end * self._page])
            self._insert_run(row, done, end, gone=0 if kept else end)
            done = end
        for at in sorted(there.get("state", ())):
            self._insert_prefix(row, at + 1, done=at + 1, tail=False)

    def _insert_run(self, row: Any, done: int, end: int, *, gone: int) -> None:
        self._insert_prefix(row, end, done=done, gone=gone, tail="state" in self._kinds)

    def _insert_prefix(
        self, row: Any, blocks: int, *, done: int, tail: bool, gone: int = 0
    ) -> None:
        """Insert the prompt's first blocks; `tail`: a page of another prompt follows them.

        The first `done` blocks are there; the windows of the first `gone` were given back.
        """
        names, page = engine(), self._page
        tokens, slots = array("q", range(blocks * page)), row[: blocks * page]
        if tail:
            tokens.extend(range(_OTHER + blocks * page, _OTHER + (blocks + 1) * page))
            slots = names.torch.cat([slots, self._allocated(1)])
        given = {}
        if "state" in self._kinds:
            given["mamba_value"] = self._rows.mamba_allocator.alloc(1)
        if not tail and given:
            self._states[int(given["mamba_value"])] = blocks - 1
        made = names.InsertParams(
            key=names.RadixKey(tokens), value=slots, prev_prefix_len=done * page, **given
        )
        if "window" in self._kinds:
            made.set_evicted_seqlen(names.ComponentType.SWA, gone * page)
        self._cache.insert(made)

    def _allocated(self, blocks: int) -> Any:
        """Return the slots of whole pages; pools with windows give pages by `alloc_extend`."""
        count = blocks * self._page
        if "window" in self._kinds and self._page > 1:
            first, length, before = map(engine().torch.tensor, ([0], [count], [-1]))
            found = self._slots.alloc_extend(first, first, length, length, before, count)
        else:
            found = self._slots.alloc(count)
        if found is None:
            raise RuntimeError(f"no room for {blocks} blocks of {_MOST_BLOCKS}")
        return found

    def _named(self, kind: str, node: Any, hit: int) -> list[int]:
        if not hit:
            return []
        if kind == "state":
            states = engine().ComponentType.MAMBA
            found = self._cache.tree_core.get_component_device_value(node, states)
            return [] if found is None else [self._states.get(int(found), -1)]
        slots = self._cache.path_device_indices(node)[:: self._page]
        return [*self._whole(slots)] if kind == "full" else [*self._windows(slots)]

    def _whole(self, slots: Any) -> Iterator[int]:
        """Yield blocks; a path of slots that were not inserted in this order names none."""
        for at, slot in enumerate(slots.tolist()):
            yield at if slot == self._row[at * self._page] else -1

    def _windows(self, slots: Any) -> Iterator[int]:
        found: Sequence[int] = self._slots.full_to_swa_index_mapping[slots].tolist()
        yield from (at for at, slot in enumerate(found) if slot)
