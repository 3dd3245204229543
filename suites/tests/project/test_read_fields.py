"""Each field of a contract's record and each keyword of an operation has a property that reads it.

The field's name has to be read by the code that judges, and the property has to be one of a suite.
CONFIGURES: each value is a situation of all properties. NAMES: the object of a call, and of every
sentence. SITUATIONS: situations alone read it. `test_agreement_fields` shows for block targets that
the property finds a field that is wrong.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

from kvproof import harness
from kvproof.harness.contract import operations, target, whole_engine
from kvproof.harness.model import records
from kvproof.harness.whole_engine.driver import Driver
from kvproof.harness.whole_engine.linked.driver import LinkedDriver
from kvproof.suites.runner.levels import property_names

NO_PROPERTY = ("CONFIGURES", "NAMES", "SITUATIONS")
_HARNESS = Path(next(iter(harness.__path__)))
_BLOCK_CODE = ("oracle/**/*.py", "model/*.py", "session.py")
_LOOP_CODE = ("whole_engine/**/*.py", "model/*.py")

_BLOCKS = """
Group CONFIGURES
TargetConfig CONFIGURES
StateUse.group every_verb_answers
StateUse.read states_are_of_exactly_the_tokens_read
StateUse.writes prompts_leave_a_checkpoint
Scheduled.step every_verb_answers
Scheduled.hit last_token_is_computed
Scheduled.start last_token_is_computed
Scheduled.stop last_token_is_computed
Scheduled.blocks table_covers_its_tokens
Scheduled.tables kernel_tables_address_their_blocks
Scheduled.copies partial_blocks_are_copied_before_they_are_written
Scheduled.states every_verb_answers
Scheduled.saves states_are_saved_where_declared
Scheduled.encode encoders_run_once_per_missed_span
Scheduled.moves loads_read_what_the_host_keeps
Refused.reason what_can_never_fit_is_refused_at_arrival
Refused.needed a_refusal_for_good_shows_the_lack
Refused.available a_refusal_for_good_shows_the_lack
Refused.detail NAMES
Completed.step every_verb_answers
Completed.blocks holders_equal_tables_and_pins
Completed.tables nothing_is_read_before_it_is_written
Released.blocks release_returns_what_was_held
Evicted.blocks eviction_takes_idle_cached_blocks
Batch.tables batch_rows_are_the_tables
Usage.total usage_adds_up
Usage.free usage_adds_up
Usage.held usage_adds_up
Usage.cached usage_adds_up
HitStatistics.queries hits_are_counted_once
HitStatistics.hits hits_are_counted_once
HitStatistics.resumed_queries hits_are_counted_once
HitStatistics.resumed_hits hits_are_counted_once
Retained.tokens only_what_is_cached_is_kept
Retained.requests only_what_is_cached_is_kept
Retained.namespaces only_what_is_cached_is_kept
Retained.expert_rows only_what_is_cached_is_kept
Retained.state_rows only_what_is_cached_is_kept
Inspection.usage held_blocks_are_those_in_tables
Inspection.state refusal_changes_nothing
Inspection.holders holders_equal_tables_and_pins
Inspection.statistics hits_are_counted_once
Inspection.events events_replay_to_the_index
Inspection.dropped blocks_keep_their_identity_while_there_is_room
Inspection.moves backups_copy_what_is_cached
Inspection.backing_up SITUATIONS
Inspection.retained only_what_is_cached_is_kept
Namespace.adapter namespaces_are_separate
Namespace.adapter_version namespaces_are_separate
Namespace.salt events_replay_to_the_index
Namespace.key events_replay_to_the_index
Span.kind spans_are_separate
Span.start spans_are_separate
Span.length spans_are_separate
Span.content spans_are_separate
Request.id NAMES
Request.tokens reads_return_own_content
Request.namespace events_replay_to_the_index
Request.spans encoders_run_once_per_missed_span
Request.read requests_that_may_not_read_hit_nothing
Request.store events_replay_to_the_index
Request.resumed hits_are_counted_once
Request.embedded embeddings_are_separate
GroupKind CONFIGURES
"""
_LOOPS = """
Drafts CONFIGURES
EngineConfig CONFIGURES
CacheEvent.kind events_replay_to_the_index
CacheEvent.key events_replay_to_the_index
CacheEvent.parent events_lead_back_to_a_requests_tokens
CacheEvent.group events_replay_to_the_index
CacheEvent.tokens events_lead_back_to_a_requests_tokens
CacheEvent.namespace events_lead_back_to_a_requests_tokens
CacheEvent.beyond events_lead_back_to_a_requests_tokens
CacheEvent.tier events_replay_to_the_index
EngineRequest.id NAMES
EngineRequest.prompt answers_equal_the_greedy_chain
EngineRequest.answers every_request_ends
EngineRequest.priority CONFIGURES
EngineRequest.salt namespaces_are_separate
EngineRequest.adapter a_row_has_its_requests_adapter_and_media
EngineRequest.adapter_version a_row_has_its_requests_adapter_and_media
EngineRequest.media a_row_has_its_requests_adapter_and_media
EngineRequest.embeds answers_equal_the_greedy_chain
EngineRequest.accepts only_accepted_drafts_stay
EngineRequest.stop every_request_ends
EngineRequest.reads_cache a_request_that_may_not_read_computes_all
EngineRequest.session a_hit_that_is_possible_is_given
EngineRequest.history answers_equal_the_greedy_chain
EngineRequest.handover a_request_that_may_not_read_computes_all
Output.id NAMES
Output.tokens answers_equal_the_greedy_chain
Output.finished every_request_ends
Output.handover received_blocks_hold_the_requests_own_content
Output.cached published_hits_are_those_of_the_history
HitCounts.asked published_hits_are_those_of_the_history
HitCounts.hit published_hits_are_those_of_the_history
HitCounts.asked_outside published_hits_are_those_of_the_history
HitCounts.hit_outside published_hits_are_those_of_the_history
Reads.table kernel_tables_address_their_blocks
Reads.writes slot_mappings_follow_the_tables
Reads.owned kernel_tables_address_their_blocks
Reads.state states_are_of_exactly_the_tokens_read
Reads.states states_are_of_exactly_the_tokens_read
Reads.use states_are_of_exactly_the_tokens_read
StateUse.read states_are_of_exactly_the_tokens_read
StateUse.writes states_are_of_exactly_the_tokens_read
StateWrite.place states_are_of_exactly_the_tokens_read
StateWrite.length states_are_of_exactly_the_tokens_read
StateWrite.part states_are_of_exactly_the_tokens_read
Row.request NAMES
Row.start device_and_scheduler_agree_on_computed_tokens
Row.tokens a_launch_computes_the_requests_own_tokens
Row.drafts only_accepted_drafts_stay
Row.of_tree a_launch_computes_the_requests_own_tokens
Row.samples answers_equal_the_greedy_chain
Row.fresh a_hit_that_is_possible_is_given
Row.device_start device_and_scheduler_agree_on_computed_tokens
Row.adapter a_row_has_its_requests_adapter_and_media
Row.media a_row_has_its_requests_adapter_and_media
Row.groups reads_return_own_content
Holdings.free an_idle_engine_holds_nothing
Holdings.total an_idle_engine_holds_nothing
Holdings.counts an_idle_engine_holds_nothing
"""
_OPERATIONS = """
Admit.request reads_return_own_content
Admit.compute a_step_computes_what_was_asked_for
Extend.id NAMES
Extend.tokens a_step_computes_what_was_asked_for
Extend.compute a_step_computes_what_was_asked_for
Extend.drafts table_never_shifts
Complete.accepted events_replay_to_the_index
Complete.routed expert_rows_are_those_of_a_fresh_run
Experts.id NAMES
Finish.id NAMES
Cancel.id NAMES
Preempt.id NAMES
Pin.request pins_hold_the_cached_prefix
Unpin.id NAMES
Evict.count eviction_takes_idle_cached_blocks
Lookup.request lookup_finds_the_longest_prefix
ReadBatch.ids batch_rows_are_the_tables
"""
_VERBS = """
submit.keywords answers_equal_the_greedy_chain
advance.request NAMES
advance.to every_request_ends
abort.number an_idle_engine_holds_nothing
abort.request NAMES
step.count every_request_ends
step.lag a_running_step_keeps_its_blocks
step.delay blocks_in_flight_are_not_reused
step.lose received_blocks_hold_the_requests_own_content
step.twice a_copy_that_ends_twice_changes_nothing
step.messages blocks_are_held_until_they_are_read
step.pace blocks_are_held_until_they_are_read
close_session.session an_idle_engine_holds_nothing
reset.running no_hit_across_epochs
sleep.level nothing_runs_on_memory_that_is_away
sleep.keep nothing_runs_on_memory_that_is_away
wake.in_parts nothing_runs_on_memory_that_is_away
"""
_LOOP_VERBS = (
    "submit", "advance", "abort", "step", "close_session", "reset", "sleep", "wake", "drain",
)  # fmt: skip
_OF_BLOCKS = (target, records, operations)
_OF_LOOPS = (whole_engine, records)


def _rows(table: str) -> dict[str, str]:
    return dict(line.split() for line in table.splitlines() if line)


ROWS = {name: _rows(name_of) for name, name_of in {
    "blocks": _BLOCKS + _OPERATIONS, "loops": _LOOPS, "verbs": _VERBS,
}.items()}  # fmt: skip


def _records(*modules: object) -> Iterator[type]:
    for module in modules:
        for each in vars(module).values():
            if inspect.isclass(each) and each.__module__ == getattr(module, "__name__", ""):
                yield from [each] if hasattr(each, "__dataclass_fields__") else []


def _missing(every: list[type], rows: dict[str, str]) -> set[str]:
    """Return the fields without a row, and the rows without a field."""
    named = {f"{each.__name__}.{field.name}" for each in every for field in fields(each)}
    whole = {each.__name__ for each in every if each.__name__ in rows}
    own = {name for name in named if name.partition(".")[0] not in whole}
    return own ^ {name for name in rows if name not in whole}


def test_each_field_of_the_block_contract_is_read() -> None:
    shared = {"CacheEvent"}  # the suite `cache` compares whole events; the loop's rows name fields
    every = [each for each in _records(*_OF_BLOCKS) if each.__name__ not in shared]
    assert _missing(every, ROWS["blocks"]) == set()


def test_each_field_of_the_loops_contract_is_read() -> None:
    every = [*_records(whole_engine), records.CacheEvent]
    unused = {"CacheEvent.spans", "CacheEvent.embedded"}  # of block targets alone
    assert _missing(every, ROWS["loops"]) - unused == set()


def test_each_keyword_of_an_engines_operation_is_read() -> None:
    found = {
        f"{verb}.{parameter}"
        for verb in _LOOP_VERBS
        for driver in (Driver, LinkedDriver)
        for parameter in inspect.signature(getattr(driver, f"_{verb}")).parameters
        if parameter != "self"
    }
    assert found == ROWS["verbs"].keys()


@pytest.mark.parametrize("table", ROWS)
def test_what_reads_it_is_a_property(table: str) -> None:
    names = {*property_names(), *NO_PROPERTY}
    assert {name for name in ROWS[table].values() if name not in names} == set()


@cache
def _read_names(*folders: str) -> frozenset[str]:
    """Return the attributes that the code of these folders reads, and its parameters."""
    nodes = (
        node
        for folder in folders
        for file in _HARNESS.glob(folder)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    )
    return frozenset(
        node.attr if isinstance(node, ast.Attribute) else node.arg
        for node in nodes
        if (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load))
        or isinstance(node, ast.arg)
    )


@pytest.mark.parametrize(("table", "folders"), [("blocks", _BLOCK_CODE), ("loops", _LOOP_CODE)])
def test_the_code_that_judges_reads_it(table: str, folders: tuple[str, ...]) -> None:
    judged = {
        name.partition(".")[2] for name, reader in ROWS[table].items() if reader not in NO_PROPERTY
    }
    assert judged - _read_names(*folders) == set()
