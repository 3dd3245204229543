"""The reference engine as a target; module `cycle` has its benchmark cycle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple, replace
from functools import cache
from importlib.metadata import version

import numpy as np
import numpy.typing as npt

from kvproof.harness.adapters.reference.cycle import make_cycle, native_groups
from kvproof.harness.adapters.reference.token_forms import in_form, spoil
from kvproof.harness.adapters.reference.view import retained, state_digest
from kvproof.harness.contract.profile import (
    DraftProfile,
    ExpertProfile,
    InspectionProfile,
    LayerProfile,
    PolicyProfile,
    Profile,
    SpanProfile,
    StateProfile,
)
from kvproof.harness.contract.target import (
    Batch,
    CacheEvent,
    Completed,
    Evicted,
    HitStatistics,
    Inspection,
    Namespace,
    Refused,
    Released,
    Request,
    Scheduled,
    Span,
    StateUse,
    Table,
    TargetConfig,
    Usage,
)
from kvproof.reference.cache.cache_events import CacheEvent as NativeEvent
from kvproof.reference.cache.cache_manager import CacheManager
from kvproof.reference.cache.holders import holders
from kvproof.reference.cache.request_state import Admission, AdmitRequest, Refusal
from kvproof.reference.cache.request_state import StateUse as NativeUse
from kvproof.reference.core import identity
from kvproof.reference.core.block_pool import Ids
from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.core.cache_policy import decide
from kvproof.reference.core.identity import Tokens
from kvproof.reference.core.media_spans import EMBEDS

__all__ = ["ManagerFactory", "ReferenceTarget", "make_cycle", "make_target"]

ManagerFactory = Callable[[CacheConfig], CacheManager]


@cache
def _profile() -> Profile:
    return Profile(
        engine="reference",
        version=version("kvproof"),
        block_sizes=(1, 2, 3, 4, 5, 7, 16),
        max_kernel_ratio=4,
        validates=True,
        no_read=True,
        no_store=True,
        pins=True,
        lookup=True,
        batch=True,
        in_flight_steps=3,
        inspection=InspectionProfile(
            holders=True, state=True, statistics=True, events=True, retained=True
        ),
        policy=PolicyProfile(keys=True, eviction_order="lru_in_all_groups", partial_blocks=True),
        layers=LayerProfile(
            groups=("full", "window", "chunk", "state"),
            mixed_block_sizes=True,
            compression=(2, 4),
            sidecars=True,
        ),
        recurrent=StateProfile(
            pools=("shared", "separate"), prompt_saves="borders", junctions=True
        ),
        speculative=DraftProfile(tokens=True, groups=True),
        media=SpanProfile(supported=True, clamp=True, encode=True, embeddings=True),
        routed=ExpertProfile(rows=True, required=True),
    )


TIERS = {
    "": "kvproof.harness.adapters.reference.tier",
    "redis": "kvproof.harness.adapters.reference.tier_redis",
}
LOOP = "kvproof.harness.adapters.reference.loop"
"""Its shared store of objects (`harness.contract.tier`)."""


def make_target(config: TargetConfig) -> ReferenceTarget:
    """Build the reference with one group of blocks."""
    return ReferenceTarget(config)


class ReferenceTarget:
    """Translates records; `manager` may be a variant of the manager (planted faults)."""

    def __init__(self, config: TargetConfig, manager: ManagerFactory = CacheManager) -> None:
        self.profile = _profile()
        self._manager = manager(_config(config))
        self._layout = self._manager.config.layout
        self._by_step: dict[int, str] = {}
        self._dropped: list[list[int]] = [[] for _ in self._layout.groups]
        self._manager.eviction.on_evicted.append(self._drop)

    def _drop(self, group: int, ids: Iterable[int]) -> None:
        self._dropped[group].extend(map(int, ids))

    def admit(self, request: Request, compute: int | None = None) -> Scheduled | Refused:
        """See `Target.admit`."""
        manager = self._manager
        step, asked = manager.begin_step(), self._asked(request, compute)
        try:
            answer = manager.admit(asked)
        except identity.IdentityError as error:
            manager.end_step(step)
            return Refused("invalid", detail=str(error))
        finally:
            spoil(asked.tokens)
        if isinstance(answer, Refusal):
            manager.end_step(step)
            return Refused(*answer)
        return self._scheduled(step, request.id, answer)

    def _asked(self, request: Request, compute: int | None) -> AdmitRequest:
        return AdmitRequest(
            request.id,
            _tokens(request),
            _namespace(request.namespace),
            _spans(request),
            compute,
            decide(
                enabled=self._manager.config.enable_prefix_caching,
                read=request.read,
                store=request.store,
            ),
            request.resumed,
        )

    def extend(
        self,
        request_id: str,
        tokens: tuple[int, ...] = (),
        compute: int | None = None,
        drafts: tuple[int, ...] = (),
    ) -> Scheduled | Refused:
        """See `Target.extend`."""
        step, more = self._manager.begin_step(), in_form(tokens, f"{request_id} {tokens}")
        answer = self._manager.extend(request_id, more, compute=compute, drafts=drafts)
        spoil(more)
        if isinstance(answer, Refusal):
            self._manager.end_step(step)
            return Refused(*answer)
        return self._scheduled(step, request_id, answer)

    def _scheduled(self, step: int, request_id: str, answer: Admission) -> Scheduled:
        self._by_step[step] = request_id
        blocks, tables = self._tables(request_id)
        scheduled = Scheduled(
            step, answer.hit, answer.start, answer.stop, blocks, tables, encode=answer.encode
        )
        if answer.copies:
            group = {block: g for g, table in enumerate(blocks) for block in table}
            pairs = tuple((group[own], source, own) for source, own in answer.copies)
            return replace(scheduled, copies=pairs)
        if answer.state is None:
            return scheduled
        use = answer.state
        last = [self._copies(use.writes[0][1], ids) for at, ids in use.saves if at == answer.stop]
        return replace(
            scheduled,
            copies=self._copies(*use.restore) if use.restore else (),
            saves=last[0] if last else (),
            states=tuple(self._states(use, answer.stop)),
        )

    def _states(self, use: NativeUse, stop: int) -> Iterator[StateUse]:
        parts = self._layout.state_tables
        passed = [save for save in use.saves if save[0] < stop]
        writes = [(tokens, parts(ids)) for tokens, ids in (*passed, *use.writes)]
        for group, read in parts(use.read).items():
            after = tuple((tokens, _ids(tables[group])) for tokens, tables in writes)
            yield StateUse(group, _ids(read), after)

    def _copies(self, source: Ids, target: Ids) -> tuple[tuple[int, int, int], ...]:
        parts = self._layout.state_tables
        return tuple(
            (group, int(one), int(other))
            for (group, from_), to in zip(
                parts(source).items(), parts(target).values(), strict=True
            )
            for one, other in zip(from_, to, strict=True)
        )

    def _tables(self, request_id: str) -> tuple[tuple[Table, ...], tuple[Table, ...]]:
        rows = self._manager.batch([request_id])
        return self._blocks(request_id), tuple(_ids(row[0]) for row in rows)

    def _blocks(self, request_id: str) -> tuple[Table, ...]:
        return tuple(map(_ids, self._manager.tables(request_id)))

    def complete(
        self, step: int, accepted: int | None = None, experts: tuple[int, ...] = ()
    ) -> Completed:
        """See `Target.complete`."""
        request_id = self._by_step.pop(step)
        kept = {} if accepted is None else {request_id: accepted}
        rows = {request_id: _expert_rows(experts)} if experts else {}
        self._manager.end_step(step, accepted=kept, experts=rows)
        if request_id not in self._manager.live:
            return Completed(step)
        return Completed(step, *self._tables(request_id))

    def experts(self, request_id: str) -> tuple[int | None, ...]:
        """See `Target.experts`."""
        recorded = self._manager.expert_rows(request_id)
        rows: list[int | None] = (recorded.rows[:, 0] @ _EXPERT_PLACES).tolist()
        for start, stop in recorded.missing:
            rows[start:stop] = [None] * (stop - start)
        return tuple(rows)

    def finish(self, request_id: str) -> Released:
        """See `Target.finish`."""
        if request_id not in self._manager.live:
            self._manager.release(request_id)
            return Released()
        held = self._held(request_id)
        self._manager.release(request_id)
        return Released(held)

    cancel = preempt = finish

    def _held(self, request_id: str) -> tuple[Table, ...]:
        return tuple(tuple(filter(None, table)) for table in self._blocks(request_id))

    def pin(self, request: Request) -> int:
        """See `Target.pin`."""
        return self._manager.pin(
            request.id,
            _tokens(request),
            namespace=_namespace(request.namespace),
            spans=_spans(request),
        )

    def unpin(self, request_id: str) -> Released:
        """See `Target.unpin`."""
        if request_id not in self._manager.pins:
            self._manager.unpin(request_id)
            return Released()
        held = self._held(request_id)
        self._manager.unpin(request_id)
        return Released(held)

    def evict(self, count: int) -> Evicted:
        """See `Target.evict`."""
        before = [len(ids) for ids in self._dropped]
        victims = self._manager.evict(count)
        if len(before) == 1:
            return Evicted((_ids(victims),))
        new = zip(self._dropped, before, strict=True)
        return Evicted(tuple(tuple(ids[first:]) for ids, first in new))

    def reset(self) -> Released | Refused:
        """See `Target.reset`."""
        self._manager.reset()
        return Released()

    def lookup(self, request: Request) -> int:
        """See `Target.lookup`."""
        return self._manager.lookup(
            _tokens(request),
            namespace=_namespace(request.namespace),
            spans=_spans(request),
        )

    def batch(self, request_ids: tuple[str, ...]) -> Batch:
        """See `Target.batch`."""
        groups = self._manager.batch(request_ids)
        return Batch(tuple(tuple(map(_ids, rows)) for rows in groups))

    def inspect(self) -> Inspection:
        """See `Target.inspect`."""
        manager = self._manager
        usage = manager.usage()
        dropped = tuple(map(tuple, self._dropped))
        self._dropped = [[] for _ in self._layout.groups]
        counts, resumed = manager.statistics.cumulative, manager.statistics.resumed
        return Inspection(
            usage=Usage(manager.pool.num_blocks - 1, usage.free, usage.held, usage.cached),
            state=state_digest(manager),
            holders=holders(manager),
            statistics=HitStatistics(counts.queries, counts.hits, resumed.queries, resumed.hits),
            events=tuple(_event(event) for event in manager.drain_events()),
            dropped=dropped,
            retained=retained(manager),
        )

    def close(self) -> None:
        """Hold nothing outside the process's memory."""


@cache
def _namespace(namespace: Namespace) -> identity.Namespace:
    return identity.Namespace(*astuple(namespace))


def _tokens(request: Request) -> Tokens:
    """Token ids; rows of embeddings have none."""
    rows = (0,) * min(request.embedded, len(request.tokens))
    return in_form(rows + request.tokens[request.embedded :], request.id)


def _spans(request: Request) -> tuple[identity.Span, ...]:
    """Spans; each row of embeddings is one of a token."""
    rows = enumerate(request.tokens[: request.embedded])
    return (
        *(identity.Span(EMBEDS, at, 1, str(row)) for at, row in rows),
        *(identity.Span(s.kind, s.start, s.length, s.content) for s in request.spans),
    )


def _ids(table: Iterable[int]) -> Table:
    return tuple(map(int, table))


def _config(config: TargetConfig) -> CacheConfig:
    separate = config.state_rows > 0
    groups = native_groups(config)
    full = not groups or any(group.kind == "full" for group in groups)
    return CacheConfig(
        num_blocks=config.num_blocks,
        block_size=config.block_size,
        kernel_block_size=config.kernel_block_size,
        enable_prefix_caching=config.prefix_caching,
        record_events=full,
        groups=groups,
        state_pool="separate" if separate else "shared",
        max_requests=max(1, config.state_rows - 1),
        prefix_cache_decode_state_interval=config.decode_interval,
        return_routed_experts=True,
        experts=(2**16, 1, 2),
        require_cached_experts=config.require_experts,
        cache_partial_blocks=config.partial_blocks,
    )


_EXPERT_PLACES = np.array([1, 2**16])
"""A row of the contract is one number of 31 bits: two experts of one layer."""


def _expert_rows(rows: tuple[int, ...]) -> npt.NDArray[np.int64]:
    given = np.array(rows, np.int64)
    return np.stack([given % 2**16, given // 2**16], axis=1)[:, None]


def _event(event: NativeEvent) -> CacheEvent:
    rows = [int(span.content) for span in event.spans if span.kind == EMBEDS]
    return CacheEvent(
        event.kind,
        event.key.hex(),
        event.parent.hex(),
        event.group,
        (*rows, *event.tokens[len(rows) :]),
        Namespace(*event.namespace),
        tuple(Span(*span) for span in event.spans if span.kind != EMBEDS),
        len(rows),
    )
