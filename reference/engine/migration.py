"""Moving whole requests between engines, or out of one and in again (C5).

The payload equals that of a worker: the content of all visible positions of each group, read
through the expanded tables, and the recurrent state. A request that finds no room changes nothing.
"""

from __future__ import annotations

from array import array
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, Protocol

from numpy.typing import ArrayLike

from kvproof.reference.cache.cache_manager import CacheManager
from kvproof.reference.cache.request_state import AdmitRequest, Refusal
from kvproof.reference.cache.routed_experts import Recorded
from kvproof.reference.core.block_pool import Ids
from kvproof.reference.core.cache_policy import Access, decide
from kvproof.reference.core.identity import IdentityError
from kvproof.reference.engine.engine_config import EngineConfig
from kvproof.reference.engine.request_queue import RUNNING, Prompt, ScheduledRequest, routed
from kvproof.reference.engine.scheduler import Scheduler
from kvproof.reference.model.interface import Content, Model, Place
from kvproof.reference.tiers.tiers import Tiers

ALONE = Access(
    read=False, write=False, reason="moved in: its cache is not whole, or of old weights"
)


class Parts(Protocol):
    """The parts of an engine that a move needs."""

    config: EngineConfig
    cache: CacheManager
    model: Model
    scheduler: Scheduler
    tiers: Tiers | None


class Moved(NamedTuple):
    """A whole request outside of any engine."""

    prompt: Prompt
    tokens: tuple[int, ...]
    """Prompt and answer so far."""
    computed: int
    """Tokens whose content moves with it; 0: it held none."""
    drafts: tuple[int, ...]
    weights: int
    content: Content | None
    """None: it held none."""
    experts: Recorded | None
    """Experts of the computed tokens."""


def take_out(engine: Parts, request_id: str) -> Moved | None:
    """Take a request out of an engine; None if unknown or one of its steps is in flight."""
    request, live = engine.scheduler.requests.get(request_id), engine.cache.live.get(request_id)
    if request is None or (live and live.last_step in engine.scheduler.steps):
        return None
    content, experts = None, None
    if request.status == RUNNING:
        content = engine.model.take(_place(engine, request_id, 0, request.computed))
        experts = routed(engine.cache, request)
    moved = Moved(
        request.prompt,
        tuple(request.tokens),
        request.computed,
        request.drafts,
        request.weights,
        content,
        experts,
    )
    engine.scheduler.leave(request, "move")
    if engine.tiers is not None:
        engine.tiers.forget(request_id)
    return moved


def bring_in(engine: Parts, moved: Moved) -> Refusal | None:
    """Admit a moved request; a refusal changes nothing (C5). IdentityError for a used id (H8)."""
    prompt, access = moved.prompt, _access(engine, moved)
    if prompt.id in engine.scheduler.requests:
        raise IdentityError(f"request {prompt.id!r} cannot move in: its id is being served here")
    refusal = engine.cache.capacity.fits(prompt.most_tokens - 1, prompt.spans)
    if refusal:
        return refusal
    namespace, spans = prompt.namespace, prompt.spans
    with _at_hand(engine):
        hit = engine.cache.lookup(moved.tokens, namespace=namespace, spans=spans)
    hit = hit if access.read else 0
    if moved.computed <= hit:
        engine.scheduler.wait(_served(engine, moved))  # all that it had is here
        return None
    if len(engine.scheduler.running) >= engine.config.cache.max_requests:
        return Refusal("no_space", 1, 0)
    return _go_on(engine, moved, access, moved.computed - hit)


def _go_on(engine: Parts, moved: Moved, access: Access, missing: int) -> Refusal | None:
    """Admit all computed tokens; their content is moved in instead of computed."""
    prompt, step = moved.prompt, engine.cache.begin_step()
    with _at_hand(engine):
        answer = engine.cache.admit(
            AdmitRequest(
                prompt.id,
                moved.tokens,
                prompt.namespace,
                prompt.spans,
                missing,
                access,
                resumed=True,
            )
        )
    if isinstance(answer, Refusal):
        engine.cache.end_step(step)
        return answer
    assert answer.stop == moved.computed, "a step of the same request could end there before"
    try:
        assert moved.content is not None, "computed tokens have content"
        engine.model.put(moved.content, _place(engine, prompt.id, answer.hit, answer.stop))
    except BaseException:
        engine.cache.release(prompt.id)
        engine.scheduler.steps[step] = []  # it ends in its turn, and with it the fence
        engine.model.launch(step, ())
        raise
    engine.scheduler.join(_running(engine, moved), step, _rows(moved, answer.hit))
    engine.model.launch(step, ())
    return None


def _at_hand(engine: Parts) -> AbstractContextManager[None]:
    """Disable loading from the tiers: missing content of the index is moved in."""
    return engine.tiers.without_loading() if engine.tiers else nullcontext()


def _rows(moved: Moved, hit: int) -> ArrayLike | None:
    """Return the expert rows from `hit` on, if all are known."""
    whole = moved.experts is not None and not moved.experts.missing
    return moved.experts.rows[hit:] if moved.experts and whole else None


def _access(engine: Parts, moved: Moved) -> Access:
    """Share its blocks only if all have content, and the weights are equal."""
    cache, access = engine.config.cache, moved.prompt.access
    whole = all(group.kind == "full" for group in cache.layout.groups)
    if not whole or moved.weights != engine.scheduler.weights:
        return ALONE
    if cache.cache_partial_blocks:  # a hit may shrink when it is held: content from 0 on fits any
        return decide(enabled=True, read=False, store=access.write)
    return access


def _served(engine: Parts, moved: Moved) -> ScheduledRequest:
    request = ScheduledRequest(moved.prompt, engine.scheduler.next_rank())
    request.tokens = list(moved.tokens)
    return request


def _running(engine: Parts, moved: Moved) -> ScheduledRequest:
    request = _served(engine, moved)
    request.admit(moved.weights)
    request.known, request.computed = len(moved.tokens), moved.computed
    request.drafts = moved.drafts
    request.last_row = moved.experts.rows[-1:] if moved.experts else None
    return request


def _place(engine: Parts, request_id: str, start: int, stop: int) -> Place:
    tables = tuple(table[0] for table in engine.cache.batch([request_id]))
    states, live = engine.cache.states, engine.cache.live[request_id]
    state: Ids = states.ids(live) if states else array("i")
    return Place(tables, state, start, stop)
