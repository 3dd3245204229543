"""Notes of a plan in addition to its numbers."""

from __future__ import annotations

from kvproof.reference.planner.capacity import capacity, request_bytes
from kvproof.reference.planner.layer_spec import ModelSpec
from kvproof.reference.planner.plan import GIB, Plan


def plan_notes(model: ModelSpec, plan: Plan) -> tuple[str, ...]:
    """Return remarks on choices that a reader may not expect."""
    return (
        *model.notes,
        *_fixed_blocks(plan),
        *_length(model, plan),
        *_unit(plan),
        *_states(plan),
        *_replicas(model, plan),
        *_shared(model),
        *_experts(model),
    )


def fallback_note(plan: Plan, hybrid: Plan) -> tuple[str, ...]:
    """Return the cost of one full-attention group against the hybrid plan (P8)."""
    length = plan.settings.max_len
    more = request_bytes(plan, length) - request_bytes(hybrid, length)
    if not more:
        return ()
    return (
        f"windows and chunks are kept whole: a request of {length:,} tokens takes "
        f"{abs(more) / GIB:,.2f} GiB {'more' if more > 0 else 'less'}, and "
        f"{capacity(plan).requests:,} run at once instead of {capacity(hybrid).requests:,}",
    )


def _fixed_blocks(plan: Plan) -> tuple[str, ...]:
    asked = plan.settings.num_blocks
    if not asked:
        return ()
    rows = plan.settings.state_rows
    room = [
        (worker.memory - rows * worker.state_row_bytes) // worker.block_bytes
        for worker in plan.workers
        if worker.block_bytes
    ]
    return (f"{asked:,} blocks as asked for; memory holds {min(room, default=asked):,}",)


def _length(model: ModelSpec, plan: Plan) -> tuple[str, ...]:
    length = plan.settings.max_len
    if not model.max_len or length <= model.max_len:
        return ()
    return (f"max_len {length:,} is more than the {model.max_len:,} that the model states",)


def _unit(plan: Plan) -> tuple[str, ...]:
    sizes = sorted({group.block_size for group in plan.groups if group.kind != "state"})
    if len(sizes) < 2:
        return ()
    listed = " and ".join(map(str, sizes))
    return (f"blocks of {listed} tokens: hits are whole multiples of {plan.unit} tokens",)


def _states(plan: Plan) -> tuple[str, ...]:
    found = []
    for index, group in enumerate(plan.groups):
        size = sum(worker.used[index] for worker in plan.workers)
        if group.kind != "state" or not size:
            continue
        if plan.separate_states:
            rows = plan.settings.state_rows
            found.append(f"{rows:,} state rows of {size / 2**20:,.2f} MiB in a pool of their own")
            continue
        room = group.state_blocks * sum(worker.block_bytes for worker in plan.workers)
        found.append(
            f"a state of {size / 2**20:,.2f} MiB fills {_blocks(group.state_blocks)}, "
            f"{100 * (room - size) / room:.1f} % of which is lost"
        )
    return tuple(found)


def _blocks(count: int) -> str:
    return "1 block" if count == 1 else f"{count:,} blocks"


def _replicas(model: ModelSpec, plan: Plan) -> tuple[str, ...]:
    """Latent pages are whole on every rank."""
    whole = any(part.replicated for layer in model.layers for part in layer.parts)
    if plan.tensor_parallel == 1 or not whole:
        return ()
    return (f"latent pages are the same on all {plan.tensor_parallel} ranks",)


def _shared(model: ModelSpec) -> tuple[str, ...]:
    count = sum(layer.kind == "shared" for layer in model.layers)
    return (f"{count} layers read the pages of others and own nothing",) if count else ()


def _experts(model: ModelSpec) -> tuple[str, ...]:
    if model.experts is None:
        return ()
    experts = model.experts
    return (
        f"expert rows, if kept, take {experts.row_bytes:,} bytes per token besides the blocks "
        f"({experts.layers} layers, {experts.per_token} of {experts.count} experts)",
    )
