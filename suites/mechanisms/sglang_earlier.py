"""Known failures of earlier SGLang releases, each with its upstream fix."""

from __future__ import annotations

from kvproof.harness.contract import operations as ops
from kvproof.harness.contract.target import Scheduled
from kvproof.harness.oracle.state import RequestState
from kvproof.suites.mechanisms.failed import Failed


def chunks_make_room_for_states(found: Failed) -> bool:
    """A prompt makes room for three slots of states, of which its request has one or all.

    It has all after its first chunk, and one after a hit, which took it for the copy.
    """
    operation, answer = found.state.history[-1]
    if not isinstance(answer, Scheduled) or not found.state.layout.states:
        return False
    copied = isinstance(operation, ops.Admit) and answer.hit > 0
    return isinstance(operation, ops.Extend) or (copied and found.fact("dropped", int) == 1)


def unstored_chunks_begin_again(found: Failed) -> bool:
    """A chunk of a request that may not store does not count as done."""
    live, answer = found.fact("live", RequestState), found.fact("answer", Scheduled)
    return not live.request.store and answer.start < live.computed


def empty_node_is_evicted(found: Failed) -> bool:
    """With states, a prompt of whole pages that comes twice leaves an empty node."""
    return bool(found.config.get("groups")) and "AssertionError" in found.violation.sentence
