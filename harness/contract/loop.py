"""An engine's own scheduler around a model that is not there, for benchmarks of the control plane.

The module of an adapter's `make_target` names a module as `LOOP`; that module has `make_loop`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol


class LoopConfig(NamedTuple):
    """Sizes of a loop; one group of full attention, prefix caching on."""

    num_blocks: int
    """Blocks of the pool, the null block included."""
    block_size: int
    requests: int
    """Most requests that run at once."""
    budget: int
    """Tokens of a step."""
    longest: int
    """Tokens of prompt and answer together."""


class Loop(Protocol):
    """Requests in, steps out. Every call but `answer` and `prepare` is timed."""

    def prepare(self, tokens: memoryview) -> object:
        """Turn int32 token ids into the prompt type that the engine's front end hands on."""

    def submit(self, name: str, prompt: Any, answers: int) -> None:
        """Let a request wait that gets `answers` tokens, whatever they are."""

    def schedule(self) -> object:
        """Decide the next step, with the tables that its worker reads; None: nothing can run."""

    def answer(self, plan: Any) -> object:
        """The model: one token for each request whose prompt is computed. Not timed."""

    def complete(self, plan: Any, answer: Any) -> Sequence[str]:
        """Apply the result of a step; returns the names of requests that are done."""

    def cached_blocks(self) -> int:
        """Blocks that are cached now."""
