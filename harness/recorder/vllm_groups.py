"""vLLM: the groups of a cache in the contract's terms, and the caches that cannot be judged.

A kind is that of the engine's own manager of the group, written for 0.33.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_KINDS = {
    "FullAttentionManager": ("full", ""),
    "SlidingWindowManager": ("window", "sliding_window"),
    "ChunkedLocalAttentionManager": ("chunk", "attention_chunk_size"),
    "MambaManager": ("state", ""),
}
"""Manager -> kind of its group, and the attribute with its tokens."""


def refusal(manager: Any) -> str:
    """Return why a cache cannot be judged; empty: it can."""
    owner = manager.coordinator
    if not owner.single_type_managers:
        return "it has no groups"
    if getattr(owner, "enable_partial_hash_hits", False):
        return "hits end inside a block, which is copied"
    return next((why for each in owner.single_type_managers if (why := _why(each))), "")


def _why(group: Any) -> str:
    """Return why one group cannot be judged."""
    spec, kind = group.kv_cache_spec, type(group).__name__
    if kind not in _KINDS:
        return f"it has a group of {type(spec).__name__}, whose tables are not read by position"
    if group.block_size != spec.block_size:
        return f"blocks of {spec.block_size} tokens are spread over several ranks"
    if getattr(spec, "prefix_replay_tokens", 0):
        return "the end of each hit is computed again"
    if kind == "MambaManager":
        return _why_no_states(group)
    return ""


def _why_no_states(group: Any) -> str:
    if group.mamba_cache_mode not in ("align", "none"):
        return f"states are kept in mode {group.mamba_cache_mode!r}"
    if getattr(group, "num_speculative_blocks", 0):
        return "states of drafts move between blocks in a step"
    if getattr(group, "has_prefill_checkpoint_blocks", False):
        return "states are kept inside a step"
    return ""


def groups(manager: Any) -> tuple[dict[str, Any], ...]:
    """Return the fields of each group; empty for one of full attention."""
    found = [_group(each) for each in manager.coordinator.single_type_managers]
    return () if len(found) == 1 and found[0]["kind"] == "full" else tuple(found)


def _group(group: Any) -> dict[str, Any]:
    kind, size = _KINDS[type(group).__name__]
    fields = {"kind": kind, "block_size": group.block_size}
    return fields | ({"size": getattr(group, size)} if size else {})


def unjudged(manager: Any, *, overlaps: bool, connected: bool = False) -> Iterator[str]:
    """Yield the limits of the judge in a cache.

    `overlaps`: whether steps do; `connected`: whether a connector loads blocks.
    """
    if connected:
        yield "tokens that a connector loads: they are taken to be right; lost hits after the first"
    if manager.use_eagle:
        yield "lost hits: a draft model gives up the last block of each"
    if retention(manager) is not None:
        yield "lost hits: windows and states are kept at intervals"
    kinds = {each["kind"] for each in groups(manager)}
    if overlaps and kinds & {"window", "chunk"}:
        yield "blocks that windows keep for too long: steps overlap, or guess tokens"
    if "state" in kinds:
        yield "the bytes of a state: it is taken to be in the block of its last token"


def retention(manager: Any) -> int | None:
    """Return the interval at which windows and states are cached; None: all of them."""
    found: int | None = getattr(manager.kv_cache_config, "prefix_cache_retention_interval", None)
    return found
