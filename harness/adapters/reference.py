"""The reference engine behind the contract, and its native cycle for benchmarks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from importlib.metadata import version

from kvproof.harness.target import (
    Batch,
    CacheEvent,
    Completed,
    Evicted,
    HitStatistics,
    Inspection,
    Namespace,
    Profile,
    Refused,
    Released,
    Request,
    Scheduled,
    Span,
    TargetConfig,
    Usage,
)
from kvproof.reference import identity
from kvproof.reference.access import decide
from kvproof.reference.block_pool import Ids
from kvproof.reference.cache_manager import CacheManager
from kvproof.reference.config import CacheConfig
from kvproof.reference.events import CacheEvent as NativeEvent
from kvproof.reference.requests import Refusal

ManagerFactory = Callable[[CacheConfig], CacheManager]


def _profile() -> Profile:
    return Profile(
        engine="reference",
        version=version("kvproof"),
        block_sizes=(1, 2, 3, 4, 16),
        max_kernel_ratio=4,
        spans=True,
        validates=True,
        no_read=True,
        no_store=True,
        pins=True,
        lookup=True,
        batch=True,
        holders=True,
        state=True,
        statistics=True,
        events=True,
        in_flight_steps=3,
    )


def make_target(config: TargetConfig) -> ReferenceTarget:
    """Build the reference with one group of blocks."""
    return ReferenceTarget(config)


class ReferenceTarget:
    """Translates records; `manager` may be a variant of the manager (planted faults)."""

    def __init__(self, config: TargetConfig, manager: ManagerFactory = CacheManager) -> None:
        self.profile = _profile()
        self._manager = manager(
            CacheConfig(
                num_blocks=config.num_blocks,
                block_size=config.block_size,
                kernel_block_size=config.kernel_block_size,
                enable_prefix_caching=config.prefix_caching,
                record_events=True,
            )
        )
        self._by_step: dict[int, str] = {}

    def admit(self, request: Request, compute: int | None = None) -> Scheduled | Refused:
        """See `Target.admit`."""
        manager = self._manager
        step = manager.begin_step()
        try:
            answer = manager.admit(
                request.id,
                request.tokens,
                namespace=_namespace(request.namespace),
                spans=_spans(request.spans),
                compute=compute,
                access=decide(
                    enabled=manager.config.enable_prefix_caching,
                    read=request.read,
                    store=request.store,
                ),
                resumed=request.resumed,
            )
        except identity.IdentityError as error:
            manager.end_step(step)
            return Refused("invalid", detail=str(error))
        if isinstance(answer, Refusal):
            manager.end_step(step)
            return Refused(*answer)
        return self._scheduled(step, request.id, answer.hit, answer.hit, answer.stop)

    def extend(
        self, request_id: str, tokens: tuple[int, ...] = (), compute: int | None = None
    ) -> Scheduled | Refused:
        """See `Target.extend`."""
        step = self._manager.begin_step()
        answer = self._manager.extend(request_id, tokens, compute=compute)
        if isinstance(answer, Refusal):
            self._manager.end_step(step)
            return Refused(*answer)
        return self._scheduled(step, request_id, 0, answer.hit, answer.stop)

    def _scheduled(self, step: int, request_id: str, hit: int, start: int, stop: int) -> Scheduled:
        self._by_step[step] = request_id
        blocks, tables = self._tables(request_id)
        return Scheduled(step, hit, start, stop, blocks, tables)

    def _tables(self, request_id: str) -> tuple[tuple[tuple[int, ...]], tuple[tuple[int, ...]]]:
        manager = self._manager
        row = manager.batch([request_id])[0].tolist()
        return (tuple(manager.live[request_id].table),), (tuple(row),)

    def complete(self, step: int) -> Completed:
        """See `Target.complete`."""
        self._manager.end_step(step)
        request_id = self._by_step.pop(step)
        if request_id not in self._manager.live:
            return Completed(step)
        return Completed(step, *self._tables(request_id))

    def finish(self, request_id: str) -> Released:
        """See `Target.finish`."""
        return _released(self._manager.release(request_id))

    def cancel(self, request_id: str) -> Released:
        """See `Target.cancel`."""
        return _released(self._manager.release(request_id))

    def preempt(self, request_id: str) -> Released:
        """See `Target.preempt`."""
        return _released(self._manager.release(request_id))

    def pin(self, request: Request) -> int:
        """See `Target.pin`."""
        return self._manager.pin(
            request.id,
            request.tokens,
            namespace=_namespace(request.namespace),
            spans=_spans(request.spans),
        )

    def unpin(self, request_id: str) -> Released:
        """See `Target.unpin`."""
        return _released(self._manager.unpin(request_id))

    def evict(self, count: int) -> Evicted:
        """See `Target.evict`."""
        return Evicted((tuple(self._manager.evict(count)),))

    def reset(self) -> Released | Refused:
        """See `Target.reset`."""
        self._manager.reset()
        return Released()

    def lookup(self, request: Request) -> int:
        """See `Target.lookup`."""
        return self._manager.lookup(
            request.tokens,
            namespace=_namespace(request.namespace),
            spans=_spans(request.spans),
        )

    def batch(self, request_ids: tuple[str, ...]) -> Batch:
        """See `Target.batch`."""
        rows = self._manager.batch(request_ids).tolist()
        return Batch((tuple(map(tuple, rows)),))

    def inspect(self) -> Inspection:
        """See `Target.inspect`."""
        manager = self._manager
        usage = manager.usage()
        counts, resumed = manager.statistics.cumulative, manager.statistics.resumed
        return Inspection(
            usage=Usage(manager.pool.num_blocks - 1, usage.free, usage.held, usage.cached),
            state=state_digest(manager),
            holders=_holders(manager),
            statistics=HitStatistics(counts.queries, counts.hits, resumed.queries, resumed.hits),
            events=tuple(_event(event) for event in manager.drain_events()),
        )

    def close(self) -> None:
        """Hold nothing outside the process's memory."""


def _namespace(namespace: Namespace) -> identity.Namespace:
    return identity.Namespace(namespace.adapter, namespace.adapter_version, namespace.salt)


def _spans(spans: Sequence[Span]) -> tuple[identity.Span, ...]:
    return tuple(identity.Span(s.kind, s.start, s.length, s.content) for s in spans)


def _released(ids: Ids) -> Released:
    return Released((tuple(ids),))


def _event(event: NativeEvent) -> CacheEvent:
    return CacheEvent(
        event.kind,
        event.key.hex(),
        event.parent.hex(),
        event.group,
        event.tokens,
        Namespace(*event.namespace),
        tuple(Span(*span) for span in event.spans),
    )


def _holders(manager: CacheManager) -> dict[int, int]:
    """Block -> count as the manager keeps it: `holds` of its node, or 1 for scratch."""
    counts: dict[int, int] = {}
    nodes = [*manager.trie.nodes(), *(n for pin in manager.pins.values() for n in pin.path())]
    for request in (*manager.live.values(), *manager.leaving):
        nodes.extend(request.node.path())
        for block in request.table[request.indexed :]:
            counts[block] = counts.get(block, 0) + 1
    for ids in manager.retired:
        counts.update(dict.fromkeys(ids, 1))
    for node in set(nodes):
        if node.holds:
            counts.update(dict.fromkeys(node.blocks, node.holds))
    return counts


def state_digest(manager: CacheManager) -> str:
    """Digest of free order, index, eviction order, holds and statistics (B4, T1)."""
    trie = manager.trie
    state = (
        manager.pool.free_ids().tolist(),
        [(bytes(n.tokens), n.blocks.tolist(), n.holds, len(n.children)) for n in trie.nodes()],
        [n.blocks.tolist() for n in trie.idle_nodes()],
        manager.usage(),
        (manager.statistics.cumulative, manager.statistics.resumed),
    )
    return hashlib.sha256(repr(state).encode()).hexdigest()


class _ReferenceCycle:
    def __init__(self, config: TargetConfig, variant: str) -> None:
        self._lists = variant == "lists"
        self.manager = CacheManager(
            CacheConfig(num_blocks=config.num_blocks, block_size=config.block_size)
        )

    def prepare(self, tokens: memoryview) -> object:
        return tokens.tolist() if self._lists else tokens.tobytes()

    def run(
        self, index: int, prompt: bytes | list[int]
    ) -> tuple[int, Sequence[int], Sequence[int]]:
        manager, request_id = self.manager, str(index)
        step = manager.begin_step()
        admission = manager.admit(request_id, prompt)
        if isinstance(admission, Refusal):
            raise RuntimeError(f"request {index} was refused: {admission}")
        manager.end_step(step)
        return admission.hit, admission.table, manager.release(request_id)

    def cached_blocks(self) -> int:
        return self.manager.usage().cached


def make_cycle(config: TargetConfig, variant: str = "") -> _ReferenceCycle:
    """Build the native cycle; prompts are int32 in `bytes`, or plain lists for variant `lists`."""
    return _ReferenceCycle(config, variant)
