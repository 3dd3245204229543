"""SGLang's pools, rows and trees, read without a change.

Ids of window pages start after those of the full pool; a request's row has full slots only, and the
allocator's map leads from them to window slots. Engine environment only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from kvproof.harness.adapters.sglang.api import engine, unified
from kvproof.harness.adapters.sglang.calls import calls
from kvproof.harness.adapters.sglang.host import Host
from kvproof.harness.adapters.sglang.pools import shares, window
from kvproof.harness.adapters.sglang.states import States
from kvproof.harness.contract.target import Inspection, Table, TargetConfig, Usage

Place = tuple[int, int, int]
"""Full slot, position, slot of the position before."""


class View:
    """Reads one cache."""

    def __init__(self, cache: Any, config: TargetConfig, states: States, host: Host) -> None:
        self._cache, self._states, self._host = cache, states, host
        self._page = config.block_size
        self._shares = shares(config)
        self._window = window(config)
        kinds = ("full", "window") if self._window else ("full",)
        self._places = [
            next(g for g, group in enumerate(config.layout) if group.kind == kind) for kind in kinds
        ]
        self._allocator = cache.token_to_kv_pool_allocator
        self._rows = cache.req_to_token_pool
        self._floors: dict[str, tuple[Any, int]] = {}
        self._known: list[set[int]] = [set(), set()]
        """Pages that were in the tree, or a request's own, at the last inspection."""
        self._kept: set[int] = set()
        """Slots of states that were in the tree then."""

    # --- requests ---

    def tables(self, request: Any) -> tuple[Table, ...]:
        """Tables by group: pages of the row, and of the window those neither freed nor evicted.

        Raises AssertionError if the slots of a row are not whole pages in order.
        """
        found = [self._full(request)]
        if self._window:
            found.append(self._windows(request))
        found_by_group = [*zip(self._places, found, strict=True), *self._states.tables(request)]
        return tuple(table for _, table in sorted(found_by_group))

    def _row(self, request: Any) -> list[int]:
        kv = calls().kv(request)
        if kv.req_pool_idx is None:
            return []
        row: list[int] = self._rows.req_to_token[kv.req_pool_idx, : kv.kv_allocated_len].tolist()
        return row

    def _full(self, request: Any) -> Table:
        row, page = self._row(request), self._page
        pages = [slot // page for slot in row[::page]]
        whole = [pages[i // page] * page + i % page for i in range(len(row))]
        assert row == whole, f"slots {row} of request {request.rid} are not whole pages in order"
        return tuple(pages)

    def _windows(self, request: Any) -> Table:
        """Window tables; null for pages outside the window: freed, or cached and not locked."""
        slots = self._row(request)[:: self._page]
        pages = self._window_pages(slots)
        kept = (self._keeps(request, index * self._page) for index in range(len(pages)))
        table = tuple(page if keep else 0 for page, keep in zip(pages, kept, strict=True))
        self._known[1].update({*table} - {0})
        return table

    def _window_pages(self, slots: list[int]) -> list[int]:
        mapping = self._allocator.full_to_swa_index_mapping
        found = mapping[engine().torch.tensor(slots, dtype=engine().torch.int64)].tolist()
        return [slot // self._page + self._shares[0] if slot else 0 for slot in found]

    def _keeps(self, request: Any, position: int) -> bool:
        kv = calls().kv(request)
        if position < kv.cache_protected_len:
            return position >= self._floor(request)
        low, high = self._freed(kv)
        return not low <= position < high

    def _freed(self, kv: Any) -> tuple[int, int]:
        """The positions whose window slots a request has given back itself."""
        if unified():
            windows = engine().ComponentType.SWA
            return kv.swa_dead_lo(self._page), kv.get_evicted_seqlen(windows)
        return kv.cache_protected_len, kv.swa_evicted_seqlen

    def _floor(self, request: Any) -> int:
        """Start of the part of the tree that a request locks in the window pool."""
        if not unified():
            return self._legacy_floor(request)
        lock = request.lock
        if lock is None or lock.swa_released:
            return 1 << 60
        seen, floor = self._floors.get(request.rid, (None, 0))
        if seen is not lock:
            floor = self._covered(lock.node)
            self._floors[request.rid] = (lock, floor)
        return floor

    def _covered(self, node: Any) -> int:
        """Whole nodes are locked from `node` upwards, until they cover a window."""
        path, covered = self._cache.tree_core.collect_path_info([node])[0], 0
        for step in reversed(path):
            covered += step.path_end - step.path_start
            if covered >= self._window:
                return int(step.path_start)
        return 0

    def _legacy_floor(self, request: Any) -> int:
        end: int = request.cache_protected_len
        node = request.last_node
        if request.swa_prefix_lock_released:
            return end
        while node is not None and node.parent is not None:
            end -= len(node.value)
            if request.swa_uuid_for_lock and node.swa_uuid == request.swa_uuid_for_lock:
                return end
            node = node.parent
        return 0

    # --- the whole ---

    def room(self) -> tuple[int, ...]:
        """Pages of each pool that are free or evictable."""
        return tuple((free + evictable) // self._page for free, evictable, _ in self._counts())

    def _counts(self) -> list[tuple[int, int, int]]:
        """(free, evictable, protected) tokens of each pool, by the engine's own counters."""
        cache, pools = self._cache, self._allocator
        if self._window:
            return [
                (pools.full_available_size(), *_sizes(cache, "full")),
                (pools.swa_available_size(), *_sizes(cache, "swa")),
            ]
        return [(pools.available_size(), *_sizes(cache, "full"))]

    def inspect(self, running: Mapping[str, Any]) -> Inspection:
        """Counts by the engine's counters, each from a different source.

        A page locked only by a transfer in flight counts as cached: no request holds it.
        """
        counts, page = self._counts(), self._page
        own = [self._own(request) for request in running.values()]
        locked = self._locked_by_transfers(running)
        waiting = sum(map(len, locked))
        usage = Usage(
            sum(self._shares),
            sum(free // page for free, _, _ in counts),
            sum(protected // page for _, _, protected in counts) + sum(map(len, own)) - waiting,
            sum(evictable // page for _, evictable, _ in counts) + waiting,
        )
        moves, digest = self._host.moves(), self._digest(running, locked)
        return Inspection(
            usage,
            digest,
            dropped=self._dropped(own),
            moves=moves,
            backing_up=self._host.backing_up(),
        )

    def _locked_by_transfers(self, running: Mapping[str, Any]) -> list[set[int]]:
        if not self._host.there:
            return []
        found, slots = [], sorted(self._host.locked())
        for windows in (False, True)[: 1 + bool(self._window)]:
            kinds = [self._walk(windows=windows, unlocked=unlocked) for unlocked in (False, True)]
            places = [self._ids([at[0] for at in each], windows=windows) for each in kinds]
            locked = set(places[0]) - set(places[1])
            mine = {page for each in running.values() for page in self._from_tree(each, windows)}
            found.append(set(self._ids(slots, windows=windows)) & locked - mine)
        return found

    def _ids(self, slots: list[int], *, windows: bool) -> list[int]:
        return self._window_pages(slots) if windows else [slot // self._page for slot in slots]

    def _from_tree(self, request: Any, windows: bool) -> Table:  # noqa: FBT001 - passed on
        if windows:
            return self._windows(request)
        return self._full(request)[: -(-calls().kv(request).cache_protected_len // self._page)]

    def _own(self, request: Any) -> list[int]:
        """Pages of both pools that a request owns outside the tree."""
        first = -(-calls().kv(request).cache_protected_len // self._page)
        windows = self._windows(request) if self._window else ()
        return [page for table in (self._full(request), windows) for page in table[first:] if page]

    def _dropped(self, own: list[list[int]]) -> tuple[Table, ...]:
        border, mine = self._shares[0], {page for pages in own for page in pages}
        found = []
        for pool, pages in enumerate((self._tree_pages(), self._tree_windows())):
            now = pages | {page for page in mine if (page > border) == bool(pool)}
            found.append(tuple(sorted(self._known[pool] - now)))
            self._known[pool] = now
        found_by_group = [*zip(self._places, found, strict=False), *self._dropped_states()]
        below = self._host.dropped()
        return tuple(table + below.get(group, ()) for group, table in sorted(found_by_group))

    def _dropped_states(self) -> list[tuple[int, Table]]:
        now = self._states.cached()
        gone, self._kept = self._kept - now, now
        return [(self._states.group, tuple(sorted(gone)))] if self._states.group >= 0 else []

    def _tree_pages(self) -> set[int]:
        return {slot // self._page for slot, _, _ in self._walk(windows=False, unlocked=False)}

    def _tree_windows(self) -> set[int]:
        if not self._window:
            return set()
        slots = [slot for slot, _, _ in self._walk(windows=True, unlocked=False)]
        return set(self._window_pages(slots)) - {0}

    def forget(self) -> None:
        """Everything was reset."""
        self._known, self._kept = [set(), set()], set()
        self._host.forget()

    def _digest(self, running: Mapping[str, Any], locked: list[set[int]]) -> str:
        """Digest of the tree's slots with places and locks, free pages in order, and rows.

        It leaves out recency, which a match refreshes, and the places of node splits.
        """
        kinds = [(windows, unlocked) for windows in ((False, True) if self._window else (False,))
                 for unlocked in (False, True)]  # fmt: skip
        walks = [self._walk(windows=w, unlocked=u) for w, u in kinds]
        for place, pages in enumerate(locked):
            everything = walks[2 * place]
            ids = self._ids([at[0] for at in everything], windows=bool(place))
            walks[2 * place + 1] += [
                at for at, page in zip(everything, ids, strict=True) if page in pages
            ]
        rows = sorted((name, self.tables(request)) for name, request in running.items())
        states = (sorted(self._states.cached()), self._states.free())
        host = sorted(self._host.used())
        found = [sorted(walk) for walk in walks]
        state = (found, self._free(), rows, len(self._rows.free_slots), states, host)
        return hashlib.sha256(repr(state).encode()).hexdigest()[:16]

    def _free(self) -> list[list[int]]:
        pools = self._allocator
        each = [pools.full_attn_allocator, pools.swa_attn_allocator] if self._window else [pools]
        return [pool.free_pages.tolist() for pool in each]

    def _walk(self, *, windows: bool, unlocked: bool) -> list[Place]:
        if not unified():
            root = getattr(self._cache, "root_node", None)
            return [] if root is None else list(_nodes(root, 0, -1, windows, unlocked))
        found = self._cache.tree_core.walk_for_kv_canary(unlocked, swa_resident_only=windows)
        columns = (found.slot_indices, found.positions, found.prev_slot_indices)
        return list(zip(*(column.tolist() for column in columns), strict=True))


def _sizes(cache: Any, pool: str) -> tuple[int, int]:
    """Evictable and protected tokens; older caches of one pool have no name for it."""
    if cache.disable:
        return 0, 0
    several = unified() or cache.supports_swa() or cache.supports_mamba()
    kind = f"{pool}_" if several else ""
    evictable, protected = (
        getattr(cache, f"{kind}{state}_size")() for state in ("evictable", "protected")
    )
    return evictable, protected


def _nodes(
    node: Any,
    depth: int,
    before: int,
    windows: bool,  # noqa: FBT001 - passed on by a recursion
    unlocked: bool,  # noqa: FBT001 - passed on by a recursion
) -> Iterator[Place]:
    for child in node.children.values():
        slots = child.value.tolist()
        lock = "swa_lock_ref" if windows else "full_lock_ref"
        locked = getattr(child, lock, None) or getattr(child, "lock_ref", 0)
        if not (unlocked and locked) and not (windows and child.swa_tombstone):
            yield from zip(slots, range(depth, depth + len(slots)), [before, *slots], strict=False)
        last = slots[-1] if slots else before  # sglang#28692 leaves empty nodes
        yield from _nodes(child, depth + len(slots), last, windows, unlocked)
