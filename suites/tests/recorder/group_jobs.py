"""vLLM's scheduler over several groups, windows, chunks, states and drafts, recorded; a program.

`python group_jobs.py SEED CASE[:FAULT] ...`, in the engine's environment: as `record_jobs`.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import record_jobs

WINDOW, CHUNK = 10, 8
record_jobs.BLOCKS = 72


def specs(kinds: str) -> list[Any]:
    """The specification of each group, by kind and block size: `full4 window8`."""
    import torch
    from vllm.v1 import kv_cache_interface as names

    def one(kind: str, size: int) -> Any:
        layer = {"block_size": size, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
        if kind == "window":
            return names.SlidingWindowSpec(**layer, sliding_window=WINDOW)
        if kind == "latent":
            return names.MLAAttentionSpec(**layer)
        if kind == "latentwindow":
            return names.SlidingWindowMLASpec(**layer, sliding_window=WINDOW)
        if kind == "chunk":
            return names.ChunkedLocalAttentionSpec(**layer, attention_chunk_size=CHUNK)
        if kind == "state":
            shape = {"shapes": ((1, 1),), "dtypes": (torch.float32,)}
            return names.MambaSpec(block_size=size, **shape, mamba_cache_mode="align")
        return names.FullAttentionSpec(**layer)

    words = (word.rstrip("0123456789") for word in kinds.split())
    return [
        one(kind, int(word[len(kind) :])) for kind, word in zip(words, kinds.split(), strict=True)
    ]


CASES: dict[str, dict[str, Any]] = {
    "window": {"kinds": "full4 window4"},
    "windows_alone": {"kinds": "window4"},
    "unequal": {"kinds": "full8 window4"},
    "window_ahead": {"kinds": "full4 window4", "ahead": True},
    "chunk": {"kinds": "full4 chunk4"},
    "state": {"kinds": "full4 state4"},
    "state_ahead": {"kinds": "full4 state4", "ahead": True},
    "latent": {"kinds": "latent4"},
    "latent_window": {"kinds": "latent4 latentwindow4"},
    "three": {"kinds": "full4 window4 chunk4"},
    "draft": {"kinds": "full4", "drafts": 3},
    "draft_window": {"kinds": "full4 window4", "drafts": 3},
}
"""Case -> groups and settings of its scheduler."""


def engine(case: str, draw: random.Random) -> Any:
    """The engine of a case."""
    chosen = CASES[case]
    return record_jobs.Vllm(
        draw, ahead=chosen.get("ahead", False), specs=specs(chosen["kinds"]),
        drafts=chosen.get("drafts", 0),
    )  # fmt: skip


# --- bugs to plant ---


def _group(running: Any, kind: str) -> Any:
    managers = running.scheduler.kv_cache_manager.coordinator.single_type_managers
    return next(each for each in managers if type(each).__name__.startswith(kind))


def _early(kind: str, more: int) -> Callable[[Any], None]:
    """Blocks that are still seen go back to the pool."""

    def plant(running: Any) -> None:
        group = _group(running, kind)
        skipped = group.get_num_skipped_tokens
        group.get_num_skipped_tokens = lambda computed: (
            skipped(computed) + (more if computed > more else 0)
        )

    return plant


def _shifted(kind: str) -> Callable[[Any], None]:
    """Two blocks of a group's table change places."""

    def plant(running: Any) -> None:
        group, done = _group(running, kind), list[str]()
        allocate = group.allocate_new_blocks

        def allocated(name: str, *sizes: int) -> Any:
            found = allocate(name, *sizes)
            table = group.req_to_blocks[name]
            if not done and len(table) > 1 and not table[-2].is_null and len(found) == 1:
                done.append(name)
                table[-2:] = table[:-3:-1]
            return found

        group.allocate_new_blocks = allocated

    return plant


def _wrong_state(running: Any) -> None:
    """A request that hits gets the state of another."""
    pool, group = running.scheduler.kv_cache_manager.block_pool, _group(running, "Mamba")
    add = group.add_local_computed_blocks

    def added(name: str, blocks: Any, *rest: int) -> None:
        others = [
            block for block in pool.blocks
            if block.block_hash and not block.is_null and blocks and block is not blocks[-1]
        ]  # fmt: skip
        add(name, [*blocks[:-1], others[-1]] if others else blocks, *rest)

    group.add_local_computed_blocks = added


def _state_freed(running: Any) -> None:
    """The block of a running state goes back to the pool."""
    group, done = _group(running, "Mamba"), list[str]()
    allocate = group.allocate_new_blocks

    def allocated(name: str, *sizes: int) -> Any:
        found = allocate(name, *sizes)
        if not done and len(group.req_to_blocks[name]) > 2:
            done.append(name)
            group.block_pool.free_blocks([group.req_to_blocks[name][-1]])
        return found

    group.allocate_new_blocks = allocated


def _cached_drafts(running: Any) -> None:
    """Drafts are indexed before they are accepted; then a prompt goes on as they guessed."""
    manager, done = running.scheduler.kv_cache_manager, list[str]()
    allocate = manager.allocate_slots

    def allocated(request: Any, *args: Any, **kwargs: Any) -> Any:
        guessed = list(request.spec_token_ids)
        blocks = allocate(request, *args, **kwargs)
        known, kept = request.num_tokens, len(request.block_hashes)
        if blocks is None or len(done) > 3 or not guessed or known % record_jobs.SIZE < 2:
            return blocks
        if known % record_jobs.SIZE + len(guessed) >= record_jobs.SIZE:
            done.append(request.request_id)
            prompt = [*request._all_token_ids, *guessed]
            request._all_token_ids.extend(guessed)
            request.update_block_hashes()
            manager.coordinator.cache_blocks(request, len(prompt))
            del request._all_token_ids[known:], request.block_hashes[kept:]
            running.later.append(([*prompt, 1, 2, 3, 4], request.cache_salt))
        return blocks

    running.later = []
    manager.allocate_slots = allocated


def _freed_with_drafts(running: Any) -> None:
    """With rejected drafts goes a block that has accepted tokens."""
    scheduler, done = running.scheduler, list[str]()
    update = scheduler.update_from_output

    def updated(out: Any, ran: Any) -> Any:
        answer = update(out, ran)
        for name in out.scheduled_spec_decode_tokens:
            request = scheduler.requests.get(name)
            if request is None or done or request.num_computed_tokens % record_jobs.SIZE == 0:
                continue
            done.append(name)
            manager = scheduler.kv_cache_manager
            table = manager.coordinator.single_type_managers[0].req_to_blocks[name]
            manager.block_pool.free_blocks([table[request.num_computed_tokens // record_jobs.SIZE]])
        return answer

    scheduler.update_from_output = updated


FAULTS: dict[str, Callable[[Any], None]] = {
    "window:early": _early("Sliding", 4),
    "window:shifted": _shifted("Sliding"),
    "unequal:early": _early("Sliding", 4),
    "chunk:early": _early("Chunked", 4),
    "latent_window:early": _early("Sliding", 4),
    "chunk:shifted": _shifted("Chunked"),
    "three:full_shifted": _shifted("Full"),
    "three:chunk_shifted": _shifted("Chunked"),
    "state:wrong": _wrong_state,
    "state:freed": _state_freed,
    "draft:cached": _cached_drafts,
    "draft:freed": _freed_with_drafts,
}


def run(name: str, seed: int, requests: int = 40) -> None:
    """Serve with one bug, or none; an engine may notice a bug itself and stop."""
    draw = random.Random(seed)
    running = engine(name.partition(":")[0], draw)
    running.later = []
    FAULTS.get(name, lambda _: None)(running)
    try:
        record_jobs.serve(running, draw, requests)
    except (AssertionError, RuntimeError, ValueError, IndexError):
        if name in CASES:
            raise


if __name__ == "__main__":
    for name in sys.argv[2:]:
        run(name, int(sys.argv[1]))
