"""Names of properties in versions up to 0.13, which files of those versions hold; gone in 0.15.

Expected-failure files, op logs and run records may name a property by its old name. They are
read as if they had the new one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec

from kvproof.harness.records.bench_names import current_case, current_workload
from kvproof.harness.records.events import AnyEvent

RENAMED: Final[Mapping[str, str]] = {
    "the_dead_leave_nothing": "dead_clients_hold_nothing",
    "silence_opens_keys_and_no_memory": "silent_writers_lose_keys_but_keep_memory",
    "a_new_server_trusts_nothing_old": "leases_do_not_survive_a_server_restart",
    "held_bytes_stay": "leased_bytes_do_not_change",
    "the_longest_unused_make_room": "eviction_is_lru_and_on_demand",
    "no_room_is_said_only_if_there_is_none": "full_means_no_evictable_bytes",
    "unlike_numbers_share_no_bytes": "dtypes_are_part_of_the_key",
    "what_comes_back_is_hit_by_who_asked": "loaded_objects_are_hit_by_their_request",
    "no_budget_is_left_while_somebody_waits": "token_budget_is_used_while_requests_wait",
    "who_leaves_is_computed_no_more": "cancelled_requests_stop_computing",
    "places_are_given_back": "queue_slots_are_released",
    "nobody_is_left_waiting": "no_request_starves",
    "the_reason_of_an_end_is_told": "finish_reason_is_correct",
    "scores_are_told_of_every_token": "logprobs_cover_every_token",
    "figures_count_each_request_once": "metrics_count_each_request_once",
    "told_experts_are_chosen": "forced_experts_are_used",
    "tensors_are_read_one_way_or_refused": "ambiguous_layouts_are_refused",
    "needed_blocks_are_those_a_hit_looks_at": "transferred_blocks_are_those_visible",
    "the_index_hears_of_every_eviction": "evictions_are_reported_once",
    "the_unit_keeps_to_its_bound": "block_size_lcm_is_bounded",
    "keeping_windows_whole_states_its_cost": "full_attention_fallback_reports_its_cost",
    "flips_are_told_by_sample": "flips_are_listed_by_sample",
    "chances_are_those_of_all_outcomes": "p_values_are_exact",
    "prompts_lose_their_middle_only": "truncation_keeps_head_and_tail",
    "a_lookup_tells_the_truth": "lookup_and_acquire_agree",
    "usage_tells_what_was_computed": "usage_counts_computed_tokens",
    "a_failed_step_fails_who_took_part": "a_failed_step_fails_its_requests",
    "what_never_fits_is_told_at_once": "oversized_requests_are_refused_at_once",
    "images_are_told_apart": "images_are_separate",
    "too_little_memory_says_what_fits": "too_little_memory_names_what_fits",
}
"""Old name -> name."""


def current(name: str) -> str:
    """Return the name that a property has now."""
    return RENAMED.get(name, name)


def upgraded(event: AnyEvent) -> AnyEvent:
    """Return an event of any version with the names that its properties and workloads have now."""
    return _upgraded(event)


_NAMES = ("property", "expected")
_BENCH = {"workload": current_workload, "case": current_case}
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
    if field in _BENCH and isinstance(value, str):
        return _BENCH[field](value)
    if field in _COUNTERS and isinstance(value, dict):
        return {current(name): count for name, count in value.items()}
    if field in _LISTS and isinstance(value, list):
        return [current(name) for name in value]
    if field in _NESTED and isinstance(value, msgspec.Struct):
        return _upgraded(value)
    return value
