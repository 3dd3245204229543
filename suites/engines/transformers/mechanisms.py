"""transformers' known failure; the page of the finding has the cause."""

from __future__ import annotations

from kvproof.harness.contract import operations as ops
from kvproof.harness.contract.target import Scheduled
from kvproof.suites.framework.failed import Failed


def oversized_prompt_stops_the_loop(found: Failed) -> bool:
    """A prompt that is larger than the pool is admitted, as its first chunk fits."""
    operation, answer = found.state.history[-1]
    if not (isinstance(operation, ops.Admit) and isinstance(answer, Scheduled)):
        return False
    chunk = -(-answer.stop // found.state.layout.unit)
    return (
        operation.compute is not None
        and chunk <= found.fact("capacity", int) < found.fact("needed", int)
        and len(answer.blocks[0]) == chunk
    )
