"""Requests and expert rows of the contract in LMDeploy's types. Engine environment only."""

from __future__ import annotations

from typing import Any

from kvproof.harness.adapters.lmdeploy.api import engine, release
from kvproof.harness.adapters.lmdeploy.releases import STATES
from kvproof.harness.contract.target import Request, Span

_PLACES = (1, 1 << 16)
"""A row of the contract is one number of 31 bits: two experts of one layer."""


def add_sequence(scheduler: Any, session: int, request: Request, *, experts: bool) -> Any:
    """A new session with one sequence, which from 0.14 on may ask for its expert rows."""
    names = engine()
    rows = {"return_routed_experts": experts} if release() >= STATES else {}
    native = scheduler.add_session(session).add_sequence(
        names.np.array(request.tokens, dtype=names.np.int64),
        sampling_param=names.SamplingParam(**rows),
        adapter_name=_adapter(request),
        multimodals=_media(request),
    )
    if release() >= STATES:
        native.prefix_cache.suppress_match_stats = request.resumed  # as an eviction does
    return native


def record(trie: Any, native: Any, rows: tuple[int, ...]) -> None:
    """Rows that a step gave, for the sequence and for the blocks that lack them."""
    names = engine()
    given = names.np.array(rows, dtype=names.np.int64)
    pairs = names.np.stack([given % _PLACES[1], given // _PLACES[1]], axis=1)[:, None]
    native.append_routed_experts(pairs.astype(names.np.uint16))
    trie.cache_routed_experts_for_seq(native)


def recorded(native: Any) -> tuple[int | None, ...]:
    """The row of every position but the last, None where the sequence has none."""
    count, real = int(native.num_all_ids) - 1, native.all_routed_experts.get_real()
    found = [] if real is None else real[:count, 0].astype(engine().np.int64) @ _PLACES
    return (*map(int, found), *[None] * (count - len(found)))


def _adapter(request: Request) -> str | None:
    """Adapters are loaded by name when the engine starts: a version is part of the name."""
    space = request.namespace
    return None if space.adapter is None else repr((space.adapter, space.adapter_version))


def _media(request: Request) -> dict[str, list[Any]] | None:
    items: dict[str, list[Any]] = {}
    for span in request.spans:
        items.setdefault(span.kind, []).append(_item(span))
    return items or None


def _item(span: Span) -> Any:
    """An item whose data the engine hashes itself (from 0.14 on)."""
    names = engine()
    return names.MultiModalData(
        data=names.torch.frombuffer(bytearray(span.content.encode()), dtype=names.torch.uint8),
        start=span.start,
        end=span.start + span.length,
        modality=span.kind,
    )
