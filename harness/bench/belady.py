"""Upper bounds of the hit rate of a workload: an infinite cache, LRU and Belady's MIN.

There are two definitions of blocks and hits:

- `hash_blocks`: the blocks of a trace as published. Every id is one reference, the partial last
  block too; a hit counts the tokens of its row.
- `engine_blocks`: the blocks of an engine with that size. Only full blocks are cached, and the last
  token is always computed, so at most (n - 1) // size blocks of a prompt of n tokens can hit. Token
  rates compare directly with the hit rate of a target.

All caches start empty and serve one request at a time, in order; a request is matched against the
state before it and then inserts all its blocks. LRU touches the blocks of a request from last to
first (leaf first), as engines free them, so a cached block never lacks its predecessor. MIN reads
the references in prompt order and may bypass a block.

The blocks of one segment of the workload always move together: they form one *atom* with a weight.
The results are the same. LRU keeps the blocks of an atom adjacent, so the depth of the first gives
the depth of all. MIN evicts by next use; the blocks of an atom are next used in one run, later ones
later, so it takes atoms from their ends and no other choice between two atoms is better. A segment
that is used in part is split into atoms.

Needs the standard library and numpy.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvproof.harness.bench.workloads import Workload
from kvproof.harness.errors import UsageError

Ints = NDArray[np.int64]

_NEVER = np.iinfo(np.int64).max


class Rate(NamedTuple):
    """Hits as a share of all block references, and of all prompt tokens."""

    blocks: float
    tokens: float


@dataclass(frozen=True, eq=False)
class References:
    """A workload as references to atoms, in prompt order; built by the two rules."""

    bounds: Ints
    """Request i owns references [bounds[i], bounds[i + 1])."""
    atoms: Ints
    weights: Ints
    """Per reference: blocks of its atom."""
    worth: Ints
    """Per reference: tokens of one block."""
    counted: NDArray[np.bool_]
    """Per reference: False where the engine has to compute the block again in any case."""
    total_tokens: int

    @property
    def blocks(self) -> int:
        """Block references."""
        return int(self.weights.sum())

    @property
    def starts(self) -> Ints:
        """Per reference: index of the first reference of its request."""
        return np.repeat(self.bounds[:-1], np.diff(self.bounds))

    @property
    def stops(self) -> Ints:
        """Per reference: the end index of its request."""
        return np.repeat(self.bounds[1:], np.diff(self.bounds))

    def distinct(self) -> Ints:
        """Per request: different blocks up to it, the smallest cache without eviction so far."""
        fresh = np.zeros_like(self.weights)
        first = np.unique(self.atoms, return_index=True)[1]
        fresh[first] = self.weights[first]
        return np.concatenate(([0], np.cumsum(fresh)))[self.bounds[1:]]

    def rate(self, hits: Ints) -> Rate:
        """From blocks hit per reference."""
        hits = hits * self.counted
        tokens = int((hits * self.worth).sum())
        return Rate(int(hits.sum()) / max(1, self.blocks), tokens / self.total_tokens)


def hash_blocks(workload: Workload) -> References:
    """References to the blocks of a trace. Raises UsageError for a synthetic workload."""
    if workload.block is None:
        raise UsageError(f"{workload.name!r} has no hash blocks", "they belong to traces")
    bounds, ids, counts = workload.paths
    ones = np.ones(len(ids), np.int64)
    atoms = np.unique(ids, return_inverse=True)[1].astype(np.int64)
    return References(bounds, atoms, ones, counts, ones > 0, workload.tokens)


def engine_blocks(workload: Workload, block_size: int) -> References:
    """References to full blocks of `block_size` tokens."""
    bounds, ids, counts = workload.paths
    lengths = workload.lengths
    ends = np.cumsum(counts) - np.repeat(np.cumsum(lengths) - lengths, np.diff(bounds))
    first = (ends - counts) // block_size
    full = ends // block_size - first
    usable = np.repeat((lengths - 1) // block_size, np.diff(bounds))
    used = np.clip(usable - first, 0, full)
    return _split(bounds, ids, full, used, block_size, workload.tokens)


def _split(
    bounds: Ints, ids: Ints, full: Ints, used: Ints, block_size: int, tokens: int
) -> References:
    """Cut segments into atoms wherever any reference ends; `full`, `used`: blocks per entry."""
    codes = np.unique(ids, return_inverse=True)[1].astype(np.int64)
    base = int(full.max(initial=0)) + 1
    keys = np.concatenate((codes * base + full, codes * base + used))
    cuts = np.unique(keys[keys % base > 0])
    offsets = cuts % base
    starts_segment = np.diff(cuts // base, prepend=-1) != 0
    sizes = offsets - np.where(starts_segment, 0, np.roll(offsets, 1))
    low = np.searchsorted(cuts, codes * base)
    number = np.where(full > 0, np.searchsorted(cuts, codes * base + full) + 1 - low, 0)
    atoms = _ranges(low, number)
    counted = offsets[atoms] <= np.repeat(used, number)
    new_bounds = np.concatenate(([0], np.cumsum(number)))[bounds]
    worth = np.full(len(atoms), block_size, np.int64)
    return References(new_bounds, atoms, sizes[atoms], worth, counted, tokens)


def _ranges(starts: Ints, numbers: Ints) -> Ints:
    """starts[i] .. starts[i] + numbers[i] - 1 for every i, joined."""
    shift = starts - (np.cumsum(numbers) - numbers)
    return np.repeat(shift, numbers) + np.arange(int(numbers.sum()), dtype=np.int64)


class Depths:
    """For every reference, the number of other blocks touched since the last use of its atom."""

    def __init__(self, references: References, *, order: str = "leaf_first") -> None:
        """`order`: `leaf_first`, or `root_first`, for unsplit references only."""
        self.references = references
        self.order = order
        self.depth = _depths(references, leaf_first=order == "leaf_first")

    def infinite(self) -> Rate:
        """Hit rate of a cache that holds everything."""
        seen = self.depth < _NEVER
        return self.references.rate(np.where(seen, self.references.weights, 0))

    def lru(self, capacity: int) -> Rate:
        """Hit rate of LRU with room for `capacity` blocks; a match ends at the first miss."""
        room = np.maximum(capacity - self.depth, 0)
        hits = np.minimum(room, self.references.weights)
        if self.order == "root_first":
            hits *= _unbroken(hits > 0, self.references.starts)
        return self.references.rate(hits)


def _unbroken(hit: NDArray[np.bool_], starts: Ints) -> NDArray[np.bool_]:
    missed = np.concatenate(([0], np.cumsum(~hit)))
    unbroken: NDArray[np.bool_] = missed[1:] == missed[starts]
    return unbroken


def _depths(references: References, *, leaf_first: bool) -> Ints:
    """Blocks used since the last use of the atom and before the request; _NEVER if first used.

    Positions are in the order of touches. A block counts once: at its first touch after the last
    use p, where its own previous touch is at or before p. So the depth is the weight of all
    touches before the request whose previous touch is <= p, less the weight of all up to p.
    """
    position = np.arange(len(references.atoms), dtype=np.int64)
    starts = references.starts
    touch = starts + references.stops - 1 - position if leaf_first else position
    atoms, weights = references.atoms[touch], references.weights[touch]
    previous = _previous(atoms)
    so_far = np.concatenate(([0], np.cumsum(weights)))
    below = _weight_below(previous + 1, weights, starts, previous + 2)
    depth = np.where(previous < 0, _NEVER, below - so_far[previous + 1])
    return depth[touch]  # the reversal within a request is its own inverse


def _previous(atoms: Ints) -> Ints:
    order = np.argsort(atoms, kind="stable")
    same = atoms[order[1:]] == atoms[order[:-1]]
    previous = np.full(len(atoms), -1, np.int64)
    previous[order[1:][same]] = order[:-1][same]
    return previous


def _weight_below(values: Ints, weights: Ints, stops: Ints, limits: Ints) -> Ints:
    """Sums of weights[j] over j < stops[i] with values[j] < limits[i], by a wavelet matrix."""
    low, high = np.zeros_like(stops), stops.copy()
    result = np.zeros_like(stops)
    bits = int(max(values.max(initial=0), limits.max(initial=0))).bit_length()
    for bit in reversed(range(bits)):
        ones = (values >> bit) & 1
        zeros_before = np.concatenate(([0], np.cumsum(1 - ones)))
        weight_before = np.concatenate(([0], np.cumsum(np.where(ones, 0, weights))))
        up = (limits >> bit) & 1 > 0
        result += np.where(up, weight_before[high] - weight_before[low], 0)
        low = np.where(up, zeros_before[-1] + low - zeros_before[low], zeros_before[low])
        high = np.where(up, zeros_before[-1] + high - zeros_before[high], zeros_before[high])
        partition = np.argsort(ones, kind="stable")
        values, weights = values[partition], weights[partition]
    return result


def belady(references: References, capacity: int) -> Rate:
    """Hit rate of MIN with bypass: an upper bound for any cache of `capacity` blocks.

    Only uses that can count are uses. Blocks without a next use are dropped at once.
    """
    following = _next_counted(references)
    resident: dict[int, int] = {}
    due: dict[int, int] = {}
    heap: list[tuple[int, int]] = []
    hits = []
    held = 0
    rows = zip(
        references.atoms.tolist(), references.weights.tolist(), following.tolist(), strict=True
    )
    for atom, weight, use in rows:
        hits.append(kept := resident.get(atom, 0))
        held += (0 if use == _NEVER else weight) - kept
        resident[atom] = 0 if use == _NEVER else weight
        due[atom] = use
        if use != _NEVER:
            heapq.heappush(heap, (-use, atom))
        while held > capacity:
            held -= _shrink(heap, due, resident, held - capacity)
    return references.rate(np.array(hits, np.int64))


def _shrink(
    heap: list[tuple[int, int]], due: dict[int, int], resident: dict[int, int], surplus: int
) -> int:
    """Evict up to `surplus` blocks of the atom that is used farthest in the future."""
    use, atom = heap[0]
    if due[atom] != -use or not resident[atom]:
        heapq.heappop(heap)
        return 0
    taken = min(resident[atom], surplus)
    resident[atom] -= taken
    return taken


def _next_counted(references: References) -> Ints:
    """Position of the next reference to the same atom that can count; _NEVER if none."""
    size = len(references.atoms)
    keys = references.atoms * size + np.arange(size, dtype=np.int64)
    uses = np.append(np.sort(keys[references.counted]), _NEVER)
    found = uses[np.searchsorted(uses[:-1], keys, side="right")]
    return np.where(found // size == references.atoms, found % size, _NEVER)
