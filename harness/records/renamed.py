"""Names of properties that 0.14 published, which its files hold; they go with 0.16.

Op logs and run records may name a property by its old name. They are read as if they had the new
one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec

from kvproof.harness.records.events import AnyEvent

RENAMED: Final[Mapping[str, str]] = {
    # up to 0.14 the suite `engine` had names of its own
    "every_slot_read_holds_the_requests_own_content": "reads_return_own_content",
    "namespaces_share_no_slot": "namespaces_are_separate",
    "unlike_media_share_no_slot": "spans_are_separate",
    "nothing_is_read_across_a_change_of_weights": "no_hit_across_epochs",
    "a_state_has_seen_exactly_the_tokens_before": "states_are_of_exactly_the_tokens_read",
    "tables_name_the_blocks_that_the_manager_holds": "kernel_tables_address_their_blocks",
    "freed_blocks_wait_for_launches_in_flight": "a_running_step_keeps_its_blocks",
    "published_events_give_the_index": "events_replay_to_the_index",
}
"""Old name -> name."""


def current(name: str) -> str:
    """Return the name that a property has now."""
    return RENAMED.get(name, name)


def upgraded(event: AnyEvent) -> AnyEvent:
    """Return an event of any version with the names that its properties and workloads have now."""
    return _upgraded(event)


_NAMES = ("property", "expected")
_COUNTERS = ("checks", "tolerated", "unshrunk")
_LISTS = ("failed", "shrunk")
_NESTED = ("kill", "shadow")

S = TypeVar("S", bound=msgspec.Struct)


def _upgraded(record: S) -> S:
    changed: dict[str, Any] = {}
    for field in record.__struct_fields__:
        value = getattr(record, field)
        new = _value(field, value)
        if new != value:
            changed[field] = new
    return msgspec.structs.replace(record, **changed) if changed else record


def _value(field: str, value: Any) -> Any:
    if field in _NAMES and isinstance(value, str):
        return current(value)
    if field in _COUNTERS and isinstance(value, dict):
        return {current(name): count for name, count in value.items()}
    if field in _LISTS and isinstance(value, list):
        return [current(name) for name in value]
    if field in _NESTED and isinstance(value, msgspec.Struct):
        return _upgraded(value)
    return value
