"""Known failures of earlier SGLang releases, each with its upstream fix."""

from __future__ import annotations

from kvproof.harness.contract import operations as ops
from kvproof.harness.contract.target import Scheduled
from kvproof.harness.oracle.state import RequestState
from kvproof.suites.mechanisms.failed import Failed


def chunks_make_room_for_states(found: Failed) -> bool:
    """Each chunk of a prompt makes room for three slots of states, which its request has."""
    operation, answer = found.state.history[-1]
    return (
        isinstance(operation, ops.Extend)
        and isinstance(answer, Scheduled)
        and bool(found.state.layout.states)
    )


def a_state_that_is_there_makes_room(found: Failed) -> bool:
    """A step whose state is cached takes a slot for it, evicts for that, and gives it back."""
    operation = found.state.history[-1][0]
    return (
        isinstance(operation, ops.Complete)
        and found.fact("dropped", int) == 1
        and found.fact("free_rows", int) == 1
    )


def unstored_chunks_begin_again(found: Failed) -> bool:
    """A chunk of a request that may not store does not count as done."""
    live, answer = found.fact("live", RequestState), found.fact("answer", Scheduled)
    return not live.request.store and answer.start < live.computed


def empty_node_is_evicted(found: Failed) -> bool:
    """With states, a prompt of whole pages that comes twice leaves an empty node."""
    return bool(found.config.get("groups")) and "AssertionError" in found.violation.sentence
