"""The tiers below the pool: evicted content is saved there and loaded instead of recomputed.

    eviction    blocks and states --save--> host --spill--> disk, remote
    admission   plan -> room? -> fetch -> load -> index; then the request hits as usual

Parts of a unit come and go on their own, and a hit must be valid for every group over index
and tiers together (X2). Objects that have not arrived are never in the index, so no request
shares a failed block (C8): the request waits in line, at most `patience` steps, or computes the
rest.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from kvproof.reference.cache.cache_manager import CacheManager
from kvproof.reference.cache.request_state import (
    LOADING,
    Admission,
    AdmitRequest,
    Refusal,
    RequestState,
)
from kvproof.reference.core.checkpoint import Checkpoint
from kvproof.reference.model.interface import Mover, Stored
from kvproof.reference.prefix.trie import Node, WindowRun
from kvproof.reference.stores.object_store import ObjectStore
from kvproof.reference.tiers.below import DISK, HOST, REMOTE, TIERS
from kvproof.reference.tiers.config import TierOptions, check_remote, read_disk, read_size
from kvproof.reference.tiers.disk_tier import LOG, DiskTier
from kvproof.reference.tiers.fetch import Direct, Source
from kvproof.reference.tiers.files import Folder
from kvproof.reference.tiers.host_tier import HostTier
from kvproof.reference.tiers.lenient import Lenient
from kvproof.reference.tiers.load import Loader
from kvproof.reference.tiers.nodes import Inventory, Leaving, NodeKeys
from kvproof.reference.tiers.object_key import EXPERTS, ObjectKeys
from kvproof.reference.tiers.plan import Plan, Planner
from kvproof.reference.tiers.waiting import Waiting

PATIENCE = 1000
"""Steps that a request waits for objects before it computes instead."""

Sources = dict[str, int]
"""Tier -> tokens of a hit that came from it."""


class Tiers:
    """All tiers of one cache. Single-threaded; deterministic as long as its source is (C7)."""

    def __init__(
        self,
        options: TierOptions,
        cache: CacheManager,
        mover: object,
        *,
        remote: ObjectStore | None = None,
    ) -> None:
        """`mover` moves the bytes, `remote` is below the disk and may be shared by hosts.

        Raises ValueError for a model that cannot move bytes, ConfigError for weights without a
        name where other processes find objects by it.
        """
        if not isinstance(mover, Mover):
            raise ValueError(
                f"host_tier {options.host_tier!r} needs a model that moves blocks; "
                f"{type(mover).__name__} lacks some of geometry, object_bytes, save, load"
            )
        place = read_disk(options.disk_tier)
        self._folder = Folder(place.path) if place else None
        self.disk = DiskTier(self._folder, place.size) if place and self._folder else None
        if remote is not None:
            check_remote(options.host_tier, weights=options.weights)
        self.remote = Lenient(remote) if remote is not None else None
        below = {DISK: self.disk, REMOTE: self.remote}
        self.host = HostTier(
            read_size(options.host_tier),
            below={name: store for name, store in below.items() if store is not None},
        )
        self.source: Source = Direct(self.host)
        self.patience = PATIENCE
        self.loaded: Counter[str] = Counter()
        """Tier -> tokens of hits that came from it, counted as hits are (V1)."""
        self.loaded_again: Counter[str] = Counter()
        """The same of preempted requests that came back, apart (V1)."""
        self.abandoned = 0
        self._eviction, self._mover = cache.eviction, mover
        self._planner = Planner(cache.config, cache.eviction, cache.hits)
        self._loader = Loader(cache.config, cache.eviction)
        self._keys = ObjectKeys(cache.config, options.weights, mover.geometry)
        self._nodes = NodeKeys(cache.eviction.unit)
        self._inventory = Inventory(cache.eviction, self._nodes, self._keys)
        self._waiting: dict[str, Waiting] = {}
        self._nonce, self._epoch = os.urandom(16), 0
        self._closed = self._paused = False
        cache.trie.attached = [*cache.trie.attached, self._nodes]
        self._found: Sources = {}
        cache.eviction.listener = self
        cache.hooks.before_admission.append(self.bring_back)
        cache.hooks.admitted.append(self._admitted)
        cache.hooks.looked_up.append(self.reach)

    # --- eviction: see `EvictionListener` ---

    def before_evict_units(self, leaf: Node, left: int) -> None:
        """Keep the units that a leaf loses at its end (T3)."""
        self._keep(self._inventory.units(leaf, left))

    def before_evict_window(self, index: int, run: WindowRun, count: int) -> None:
        """Keep the units that a run loses at its front (X4)."""
        self._keep(self._inventory.run(index, run, count))

    def before_evict_state(self, checkpoint: Checkpoint) -> None:
        """Keep a checkpoint whose room is needed (S6)."""
        self._keep(self._inventory.state(checkpoint))

    def _keep(self, leaving: Iterable[Leaving]) -> None:
        new = [each for each in leaving if not self.host.holds(each.key)]
        moved = [each for each in new if each.part != EXPERTS]
        content = self._mover.save([Stored(each.part, each.ids) for each in moved])
        objects = {each.key: data for each, data in zip(moved, content, strict=True)}
        self.host.store(objects | {each.key: each.data for each in new if each.part == EXPERTS})

    # --- admission ---

    def bring_back(self, asked: AdmitRequest, request: RequestState) -> Refusal | None:
        """Load the objects that make the hit of a request longer, if all of them find room (X2).

        A refusal counts the objects that are needed and those that are here: the others are on
        their way, and nothing has changed (B4, C8).
        """
        found = self.prepare(request, asked.compute)
        if isinstance(found, Refusal):
            return found
        self._found = found
        return None

    def prepare(self, request: RequestState, compute: int | None) -> Sources | Refusal:
        """Load them; returns how many tokens of the hit came from each tier, or a refusal (X2)."""
        if self._paused or not request.access.read:
            return {}
        waiting = self._wait(request)
        while waiting.polls <= self.patience:
            waiting.look_again()
            plan = self._planner.plan(request, waiting.links, self._keys.key, waiting)
            if plan is None or not self._loader.fits(request, plan, compute):
                break
            if all(need.key in waiting.views for need in plan.needs):
                self._loader.load(request, plan, self._mover, waiting.views)
                return self.tokens_by_tier(plan, waiting.places)
            waiting.ask(plan.needs)
            useless = waiting.poll(self._size)
            if useless is None and waiting.polls <= self.patience:
                return Refusal(LOADING, len(plan.needs), len(waiting.views))
            self.abandoned += useless is None
            if useless:
                self.host.drop(useless)
        waiting.release()
        return {}

    def reach(self, request: RequestState) -> int:
        """Return the tokens that a request could hit with the tiers; 0: they add none."""
        if self._paused or not request.prompt:
            return 0
        waiting = self._asking(request)
        plan = self._planner.plan(request, waiting.links, self._keys.key, waiting)
        return plan.length * self._eviction.unit if plan else 0

    @contextmanager
    def without_loading(self) -> Iterator[None]:
        """Exclude the tiers from lookups and admissions meanwhile (C5)."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def _wait(self, request: RequestState) -> Waiting:
        waiting = self._waiting.get(request.id)
        if waiting is None or not waiting.concerns(request):
            self.forget(request.id)
            waiting = self._waiting[request.id] = self._asking(request)
        return waiting

    def _asking(self, request: RequestState) -> Waiting:
        units = (request.prompt - 1) // self._eviction.unit
        links = self._keys.chain(request.namespace, bytes(request.tokens), request.spans, units)
        return Waiting(self.source, request, links, far=REMOTE in self.host.below.stores)

    def _size(self, part: str) -> int:
        experts = self._eviction.experts
        if part == EXPERTS:
            return experts.store.form.empty(self._eviction.unit).nbytes if experts else 0
        return self._mover.object_bytes(part)

    def tokens_by_tier(self, plan: Plan, places: dict[bytes, str | None]) -> Sources:
        """Return the source of each token that only became a hit by loading (V1).

        The source of a unit is the slowest tier of its parts; if it only lacked a state or blocks
        of later units, the slowest tier of all.
        """
        slow: dict[int, str] = {}
        for need in plan.needs:
            found = slow.get(need.unit, HOST), places[need.key] or HOST
            slow[need.unit] = max(found, key=TIERS.index)
        slowest = max(slow.values(), key=TIERS.index, default=HOST)
        counts, unit = Counter[str](), self._eviction.unit
        for number in range(plan.before // unit, plan.length):
            known = max(0, plan.before - number * unit)
            counts[slow.get(number, slowest)] += unit - known
        return dict(counts)

    def _admitted(self, asked: AdmitRequest, answer: Admission | Refusal) -> None:
        """Count the loaded tokens of an admitted request (V1)."""
        if isinstance(answer, Admission):
            (self.loaded_again if asked.resumed else self.loaded).update(self._found)
            self.forget(asked.id)

    # --- leaving ---

    def forget(self, request_id: str) -> None:
        """Cancel the wait of this request for its objects; idempotent (C6)."""
        waiting = self._waiting.pop(request_id, None)
        if waiting is not None:
            waiting.release()

    @property
    def num_loading(self) -> int:
        """Requests whose objects are on their way."""
        return sum(waiting.loading for waiting in self._waiting.values())

    def close(self) -> None:
        """Flush host memory to the tiers below, and release the folder. Idempotent."""
        if not self._closed:
            self._closed = True
            self.host.flush()
        if self._folder is not None and not self._folder.closed:
            self._folder.close()

    def clear(self) -> None:
        """Begin a new epoch: nothing that any tier holds is hit from now on (H6).

        Host memory is cleared. Files stay: those that the configuration names by their weights
        are good for the next process, and no other process can name those of later epochs.
        """
        for request_id in [*self._waiting]:
            self.forget(request_id)
        self._nodes.clear()
        self.host.clear()
        self._epoch += 1
        self._keys.begin_epoch(self._epoch, self._nonce)
        LOG.info("reset: epoch %d finds nothing of earlier ones; files stay", self._epoch)
