"""vLLM: running requests of one group are recorded at the end of a step, all at once.

A request that decodes costs the engine's thread nothing until it gets a block. Its filled blocks
are written before an admission of the same step may hit them, by the manager's own counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvproof.harness.recorder.hooks import writer_of
from kvproof.harness.recorder.log_writer import Held, LogWriter

Admitted = Callable[[LogWriter, Any, Any, tuple[int, int, int], Any], None]
"""`admitted(writer, manager, request, (new, hit, loaded), blocks)` writes an admission."""

_WRITER = "_kvproof_steps"


def follow(scheduler: Any, admitted: Admitted) -> None:
    """Record the steps of a scheduler, if its cache is recorded in that way."""
    manager: Any = getattr(scheduler, "kv_cache_manager", None)
    writer = writer_of(manager)
    if writer is None or not writer.by_steps:
        return
    steps = Steps(manager, writer)
    scheduler.schedule = _scheduling(scheduler.schedule, steps)
    manager.allocate_slots = _allocating(type(manager).allocate_slots, steps, admitted)
    manager.cache_blocks = _unhooked(type(manager).cache_blocks, manager)
    setattr(manager, _WRITER, steps)
    writer.look = steps.look


def steps_of(manager: Any) -> Steps | None:
    """Return the steps of a manager, if they are recorded as such."""
    return getattr(manager, _WRITER, None)


class Steps:
    """The requests of one scheduler, and how far they are written."""

    def __init__(self, manager: Any, writer: LogWriter) -> None:
        self.writer, self.manager = writer, manager
        (group,) = manager.coordinator.single_type_managers
        self._size = group.block_size
        self._tables, self._cached = group.req_to_blocks, group.num_cached_block
        self._running = self._looked = False
        self.chunks: dict[str, int] = {}
        """Running requests that compute more than a token in the step that is being scheduled."""

    def begin(self) -> None:
        """A step is about to be scheduled."""
        self._running, self._looked = True, False
        self.chunks.clear()

    def end(self, out: Any) -> None:
        """Write the requests that got blocks in a step."""
        self._running = self._looked = False
        writer, cached, counts = self.writer, out.scheduled_cached_reqs, out.num_scheduled_tokens
        live, tables = writer.live, self._tables
        writer.turn()
        for name, blocks, start in zip(  # noqa: B905 - the engine's own lists
            cached.req_ids, cached.new_block_ids, cached.num_computed_tokens
        ):
            if blocks is not None and (held := live.get(name)):
                fresh = _fresh(tables[name], held[0].table)
                if fresh:
                    known = held[1].num_tokens
                    writer.grown(held, known, start, start + counts[name], fresh)
        writer.stepped()

    def look(self) -> None:
        """Write the blocks that are filled or handed out by now, once in a step."""
        if self._looked:
            return
        self._looked = self._running
        for name, held in self.writer.live.items():
            self._catch_up(name, held)
        self.writer.stepped()

    def leaving(self, name: str) -> None:
        """Write the blocks of one request that is about to give them back."""
        self.writer.turn()
        self._catch_up(name, self.writer.live[name])
        self.writer.stepped()

    def _catch_up(self, name: str, held: Held) -> None:
        """Write the blocks of one request that are filled or handed out by now."""
        entry, request = held
        computed = request.num_computed_tokens + self._running * self.chunks.get(name, 1)
        filled = min(self._cached.get(name, 0) * self._size, computed, request.num_tokens)
        fresh = _fresh(self._tables.get(name, ()), entry.table)
        if fresh:  # as the step that needs them: a replay takes them now, too
            start = request.num_computed_tokens
            self.writer.grown(held, request.num_tokens, start, computed, fresh)
        elif filled > entry.stop:
            self.writer.grown(held, filled, 0, filled, ())


def _fresh(table: Any, known: list[int]) -> list[int]:
    """Return the blocks of a table that are not written yet."""
    have = len(known)
    return [block.block_id for block in table[have:]] if len(table) > have else []


def _scheduling(original: Any, steps: Steps) -> Callable[..., Any]:
    writer = steps.writer

    def schedule(*args: Any, **kwargs: Any) -> Any:
        steps.begin()
        out = original(*args, **kwargs)
        if any(out.scheduled_cached_reqs.new_block_ids) and writer.active:
            try:
                steps.end(out)
            except BaseException as error:  # noqa: BLE001 - the engine must not notice
                writer.fail(error)
        return out

    return schedule


def _allocating(original: Any, steps: Steps, admitted: Admitted) -> Callable[..., Any]:
    """Return `allocate_slots` of one manager; a request that runs passes without a look."""
    manager, writer, chunks = steps.manager, steps.writer, steps.chunks

    def allocate_slots(
        request: Any, num_new_tokens: int, *more: Any, num_lookahead_tokens: int = 0, **named: Any
    ) -> Any:
        if not named and not more:
            if num_new_tokens != 1:
                chunks[request.request_id] = num_new_tokens
            return original(
                manager, request, num_new_tokens, num_lookahead_tokens=num_lookahead_tokens
            )
        named["num_lookahead_tokens"] = num_lookahead_tokens
        blocks = original(manager, request, num_new_tokens, *more, **named)
        if blocks is not None and writer.active:
            try:
                hit = more[0] if more else named.get("num_new_computed_tokens", 0)
                loaded = named.get("num_external_computed_tokens", 0)
                admitted(writer, manager, request, (num_new_tokens, hit, loaded), blocks)
            except BaseException as error:  # noqa: BLE001 - the engine must not notice
                writer.fail(error)
        return blocks

    return allocate_slots


def _unhooked(hooked: Any, manager: Any) -> Callable[..., Any]:
    original: Any = hooked.__wrapped__
    return original.__get__(manager)  # type: ignore[no-any-return] # the engine's own
