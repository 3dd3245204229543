"""Options of `kvproof plan`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

Memory = Annotated[list[str] | None, Parameter("--memory", consume_multiple=True)]


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Options of the verb; each attribute docstring is the help text."""

    model_config: Path | None = None
    """A Hugging Face config.json, or its directory."""
    memory: Memory = None
    """For pages and states, on each GPU, for example 64GiB; one value per pipeline stage if
    they differ."""
    max_len: int | None = None
    """Tokens of the longest request; the model's own limit by default."""
    block_size: int = 64
    """Tokens; the blocks of all groups are multiples of it."""
    kernel_block_size: int = 0
    """Tokens that a kernel sees as one page; block_size by default."""
    num_blocks: int = 0
    """Blocks; as many as memory holds by default."""
    kv_dtype: str = "auto"
    """auto (the dtype of the weights), bfloat16, float16, float32, fp8, fp8_ds_mla; with a scale
    for each token and head: fp8_per_token_head, int8_per_token_head, int4_per_token_head."""
    tensor_parallel: int = 1
    """Ranks that share the heads of every layer."""
    pipeline_parallel: int = 1
    """Stages that share the layers."""
    context_parallel: int = 1
    """Ranks that share the tokens of every request, beyond those of tensor_parallel."""
    interleave: int = 1
    """Consecutive tokens of a request on one of these ranks."""
    max_batch_tokens: int = 8192
    """Tokens of one request that may be scheduled and not complete."""
    max_requests: int = 256
    """Rows of a separate state pool for running requests."""
    drafts: int = 0
    """Draft tokens per step, with the draft layers of the model."""
    max_unit: int = 0
    """Bound on the tokens to which hits align; four times block_size by default."""
    hybrid_groups: bool = True
    """Off: windows and chunks are kept whole, in one group with full attention."""
    state_pool: Literal["shared", "separate"] = "shared"
    """Recurrent states in ordinary blocks, or in rows of their own."""
    prefix_cache_state_budget: int = 0
    """Rows of a separate state pool for checkpoints."""
    read: Path | None = None
    """Show a plan.json that was written before, instead of planning."""
    output: Path | None = None
    """Directory for plan.json and plan.html."""
