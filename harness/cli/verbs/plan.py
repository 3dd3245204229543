"""`plan`."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from rich.console import Console

from kvproof.harness.cli.output import standard_output
from kvproof.harness.errors import UsageError
from kvproof.harness.records.run_directory import store
from kvproof.reference.core.cache_config import ConfigError
from kvproof.reference.planner.hf_config import read_model
from kvproof.reference.planner.hf_fields import KV_DTYPES
from kvproof.reference.planner.layer_spec import ModelSpec, PlanError
from kvproof.reference.planner.plan import Plan, PlanSettings
from kvproof.reference.planner.planner import make_plan
from kvproof.reference.planner.rules import read_plan
from kvproof.reference.planner.summary import summary
from kvproof.reports.render.plan_page import print_plan, render_plan

_UNITS = {"": 1, "B": 1, **{f"{p}B": 1000**i for i, p in enumerate("KMGT", 1)},
          **{f"{p}iB": 1024**i for i, p in enumerate("KMGT", 1)}}  # fmt: skip

Memory = Annotated[list[str] | None, Parameter("--memory", consume_multiple=True)]


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Each field is an option, and what stands under it is its help."""

    model_config: Path | None = None
    """A Hugging Face config.json, or the directory that holds it."""
    memory: Memory = None
    """For pages and states, on each GPU, for example 64GiB; one value per pipeline stage if
    they differ."""
    max_len: int | None = None
    """Tokens of the longest request; what the model states by default."""
    block_size: int = 64
    """Tokens; the blocks of all groups are multiples of it."""
    kernel_block_size: int = 0
    """Tokens that a kernel sees as one page; block_size by default."""
    num_blocks: int = 0
    """Blocks; as many as memory holds by default."""
    kv_dtype: str = "auto"
    """auto (the dtype of the weights), bfloat16, float16, float32, fp8, fp8_ds_mla."""
    tensor_parallel: int = 1
    """Ranks that share the heads of every layer."""
    pipeline_parallel: int = 1
    """Stages that share the layers."""
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


def plan(options: Annotated[PlanOptions, Parameter(name="*")] = PlanOptions()) -> None:
    """Plan the memory of a model: groups, blocks, what is lost, and how many requests fit."""
    console = standard_output()
    try:
        made = _make(options) if options.read is None else read_plan(_bytes_of(options.read))
    except ConfigError as error:
        raise UsageError(
            str(error), getattr(error, "hint", "") or "see kvproof plan --help"
        ) from error
    _show(made, options.output, console)


def _make(options: PlanOptions) -> Plan:
    model = read_model(_config(options.model_config), kv_dtype=_dtype(options.kv_dtype))
    settings = PlanSettings(
        memory=_memory(options.memory, options.pipeline_parallel),
        max_len=_length(options.max_len, model),
        block_size=options.block_size,
        kernel_block_size=options.kernel_block_size,
        num_blocks=options.num_blocks,
        max_batch_tokens=options.max_batch_tokens,
        drafts=options.drafts,
        max_unit=options.max_unit,
        hybrid_groups=options.hybrid_groups,
        state_pool=options.state_pool,
        max_requests=options.max_requests,
        prefix_cache_state_budget=options.prefix_cache_state_budget,
    )
    return make_plan(model, settings, tensor_parallel=options.tensor_parallel)


def _show(made: Plan, output: Path | None, console: Console) -> None:
    told = summary(made)
    print_plan(told, console)
    if output is not None:
        store(output / "plan.json", made.to_json())
        page = store(output / "plan.html", render_plan(told).encode())
        written = f"\nwritten: {output / 'plan.json'}, {page}"
        console.print(written, markup=False, highlight=False, soft_wrap=True)


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"cannot read {str(path)!r}: {error.strerror}",
            "give a config.json or its folder, or with --read a plan.json",
        ) from error


def _config(path: Path | None) -> dict[str, Any]:
    if path is None:
        raise UsageError("there is no model to plan for", "give --model-config config.json")
    data = _bytes_of(path / "config.json" if path.is_dir() else path)
    try:
        config = json.loads(data)
    except ValueError as error:
        raise UsageError(f"{str(path)!r} is not JSON: {error}", "give a config.json") from error
    if not isinstance(config, dict):
        raise UsageError(f"{str(path)!r} is not a JSON object", "give a config.json")
    return config


def _dtype(name: str) -> str:
    if name not in KV_DTYPES:
        raise PlanError(f"kv dtype {name!r} is not known", f"one of {', '.join(KV_DTYPES)}")
    return name


def _length(given: int | None, model: ModelSpec) -> int:
    length = given or model.max_len
    if not length:
        raise UsageError(
            "the model states no longest length", "give one, for example --max-len 8192"
        )
    return length


def _memory(given: list[str] | None, stages: int) -> tuple[int, ...]:
    """Return bytes for each pipeline stage."""
    sizes = [size_of(item) for text in given or () for item in text.split(",")]
    if not sizes:
        raise UsageError("there is no memory to plan", "for example --memory 64GiB")
    if stages < 1 or len(sizes) not in (1, stages):
        raise UsageError(
            f"{len(sizes)} sizes of memory for {stages} pipeline stages",
            "give one size for all stages, or one for each",
        )
    return tuple(sizes * stages if len(sizes) == 1 else sizes)


def size_of(text: str) -> int:
    """Return bytes. Raises UsageError with the value and legal examples."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]i?B|B|)\s*", text)
    if found is None:
        raise UsageError(f"memory {text!r} is not a size", "for example 64GiB, 80GB or 1048576")
    return int(float(found[1]) * _UNITS[found[2]])
