"""Known failures of earlier LMDeploy releases, each with its upstream fix."""

from __future__ import annotations

from kvproof.harness.contract import operations as ops
from kvproof.harness.contract.target import Inspection, Refused
from kvproof.harness.oracle.state import RequestState
from kvproof.suites.mechanisms.failed import Failed


def images_are_their_placeholders(found: Failed) -> bool:
    """Blocks are known by their placeholder tokens alone."""
    return any(
        operation.request.spans
        for operation, _ in found.state.history
        if isinstance(operation, ops.Admit)
    )


def hits_end_inside_images(found: Failed) -> bool:
    """Nothing keeps a hit from ending inside an image."""
    return found.has("live") and bool(found.fact("live", RequestState).request.spans)


def chunked_turns_give_blocks_up(found: Failed) -> bool:
    """The next turn of a session that needs chunks gives up all blocks of the session."""
    operation = found.state.history[-1][0]
    return isinstance(operation, ops.Extend) and len(operation.tokens) > 1


def hits_before_chunks_are_given_up(found: Failed) -> bool:
    """A hit is given up where what is left still needs chunks."""
    operation, answer = found.state.history[-1]
    if isinstance(answer, Refused):  # it needs more room than what is left of it
        chunked = isinstance(operation, ops.Admit) and operation.compute is not None
        return chunked and answer.needed > found.fact("needed", int)
    return isinstance(operation, ops.Admit) and not found.fact("hit", int)


def waiting_counts_as_query(found: Failed) -> bool:
    """A request, or a turn, that waits counts in the statistics whenever it is matched."""
    operation, answer = found.state.history[-1]
    before, after = found.fact("before", Inspection), found.fact("found", Inspection)
    return (
        isinstance(operation, (ops.Admit, ops.Extend))
        and isinstance(answer, Refused)
        and before.usage == after.usage
        and before.holders == after.holders
        and not any(after.dropped or ())
    )
