"""LMCache's known failures; the pages of the findings have the causes."""

from __future__ import annotations

from kvproof.suites.framework.failed import Failed


def small_window_takes_a_chunk(found: Failed) -> bool:
    """On a CPU an object has room for the tokens of a chunk that its window does not keep."""
    given = found.fact("given", int)
    return found.fact("size", int) < given <= found.fact("uncut", int) and any(
        cache["kind"] == "window" and cache["size"] < found.config["chunk"]
        for cache in found.config["caches"]
    )


def interleaved_groups_are_never_stored(found: Failed) -> bool:
    """On a CPU nothing moves where groups of another object lie between those of one."""
    parts = found.fact("parts", list)
    gaps = any(sorted(part) != list(range(min(part), max(part) + 1)) for part in parts if part)
    return gaps and "Size mismatch" in found.fact("error", str)


def skip_is_rounded_down(found: Failed) -> bool:
    """A skip that ends inside a block writes the tokens before it that share the block."""
    return bool(found.fact("inside", int)) and found.fact("rounded", bool)


def partly_null_chunk_is_served(found: Failed) -> bool:
    """A chunk of which a window has left a part is stored with the null block's bytes."""
    return found.fact("null", bool) and 0 < found.fact("holes", int) < 4


def left_window_in_a_shared_object(found: Failed) -> bool:
    """A chunk that a window has left is stored, as other groups share its object."""
    return (
        found.fact("null", bool)
        and found.fact("holes", int) == 4
        and not found.config["separate"]
        and found.fact("parts", int) == 1
    )


def retrieve_writes_the_null_block(found: Failed) -> bool:
    """Blocks that the engine's window has left are null in its table, and copied all the same."""
    return found.verb == "take" and found.fact("of_the_hit", bool)


def refused_retrieve_keeps_locks(found: Failed) -> bool:
    """A retrieve with too few blocks keeps the locks of its look-up."""
    locks, reserved = found.fact("locks", int), found.fact("reserved", int)
    return found.verb == "short_take" and locks > 0 and not reserved


def failed_store_blocks_its_content(found: Failed) -> bool:
    """A store whose copy failed keeps its reserved memory."""
    locks, reserved = found.fact("locks", int), found.fact("reserved", int)
    return found.verb == "wrong_store" and reserved > 0 and not locks


def types_share_keys(found: Failed) -> bool:
    """An engine with numbers of another type reads the bytes of the first one's, all of them."""
    return found.verb == "ask_as_other" and not found.fact("rest", bool)
