"""Moving whole requests between engines, or out of one and in again (C5).

What moves is what a worker would send: of each group the content of all visible positions, read
through the expanded tables, and the recurrent state. A request that finds no room changes nothing.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

from kvproof.reference.access import Access
from kvproof.reference.block_pool import Ids
from kvproof.reference.engine import Engine
from kvproof.reference.expert_history import Recorded
from kvproof.reference.request_queue import RUNNING, Prompt, Served
from kvproof.reference.requests import Admission, Refusal
from kvproof.reference.routed import routed
from kvproof.reference.work import Place

ALONE = Access(
    read=False, write=False, reason="moved in: its cache is not whole, or of old weights"
)


class Moved(NamedTuple):
    """A whole request outside of any engine."""

    prompt: Prompt
    tokens: tuple[int, ...]
    """Prompt and answer so far."""
    computed: int
    """Tokens whose content moves with it; 0: it held none."""
    drafts: tuple[int, ...]
    weights: int
    content: object
    """As the model gave it."""
    experts: Recorded | None
    """Of the computed tokens."""


def take_out(engine: Engine, request_id: str) -> Moved | None:
    """Take a request out of an engine; None if it is unknown or one of its steps is in flight."""
    request = engine.scheduler.requests.get(request_id)
    if request is None or request.in_flight:
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
    return moved


def bring_in(engine: Engine, moved: Moved) -> Refusal | None:
    """Let a moved request go on in this engine; a refusal has changed nothing (C5)."""
    scheduler = engine.scheduler
    refusal = engine.cache.needs.fits(moved.prompt.most_tokens - 1, moved.prompt.spans)
    if refusal:
        return refusal
    if not moved.computed:
        scheduler.wait(_served(engine, moved))
        return None
    if len(scheduler.running) >= engine.config.cache.max_requests:
        return Refusal("no_space", 1, 0)
    step = engine.cache.begin_step()
    answer = _make_room(engine, moved)
    if isinstance(answer, Refusal):
        engine.cache.end_step(step)
        return answer
    engine.model.put(moved.content, _place(engine, moved.prompt.id, answer.hit, moved.computed))
    request = _served(engine, moved)
    request.admit(moved.weights)
    request.known = request.computed = moved.computed
    request.drafts = moved.drafts
    rows = moved.experts.rows if moved.experts else None
    request.last_row = None if rows is None else rows[-1:]
    if moved.experts and moved.experts.missing:
        rows = None  # half of the rows cannot be told to the cache manager
    scheduler.join(request, step, None if rows is None else rows[answer.hit :])
    engine.model.launch(step, ())
    return None


def _make_room(engine: Engine, moved: Moved) -> Admission | Refusal:
    """Admit all that was computed; its content will be put there instead of being computed."""
    return engine.cache.admit(
        moved.prompt.id,
        moved.tokens[: moved.computed],
        namespace=moved.prompt.namespace,
        spans=moved.prompt.spans,
        access=_access(engine, moved),
        resumed=True,
    )


def _access(engine: Engine, moved: Moved) -> Access:
    """Share its blocks only if every one of them has content, and the weights are today's."""
    whole = all(group.kind == "full" for group in engine.config.cache.layout.groups)
    return moved.prompt.access if whole and moved.weights == engine.scheduler.weights else ALONE


def _served(engine: Engine, moved: Moved) -> Served:
    request = Served(moved.prompt, engine.scheduler.next_rank())
    request.tokens = list(moved.tokens)
    return request


def _place(engine: Engine, request_id: str, start: int, stop: int) -> Place:
    tables = tuple(table[0] for table in engine.cache.batch([request_id]))
    states, live = engine.cache.states, engine.cache.live[request_id]
    state: Ids = states.ids(live) if states else array("i")
    return Place(tables, state, start, stop)
