"""`plan`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from rich.console import Console

from kvproof.harness.cli.output import standard_output
from kvproof.harness.errors import UsageError
from kvproof.harness.records import store
from kvproof.reference.config import ConfigError
from kvproof.reference.layer_spec import ModelSpec, PlanError
from kvproof.reference.model_config import read_model
from kvproof.reference.model_fields import KV_DTYPES
from kvproof.reference.plan import Plan, PlanSettings
from kvproof.reference.plan_rules import read_plan
from kvproof.reference.plan_summary import summary
from kvproof.reference.planner import make_plan
from kvproof.reports.plan import print_plan, render_plan

_UNITS = {"": 1, "B": 1, **{f"{p}B": 1000**i for i, p in enumerate("KMGT", 1)},
          **{f"{p}iB": 1024**i for i, p in enumerate("KMGT", 1)}}  # fmt: skip

Memory = Annotated[list[str] | None, Parameter("--memory", consume_multiple=True)]


def plan(
    *,
    model_config: Path | None = None,
    memory: Memory = None,
    max_len: int | None = None,
    block_size: int = 64,
    kernel_block_size: int = 0,
    num_blocks: int = 0,
    kv_dtype: str = "auto",
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    max_batch_tokens: int = 8192,
    max_requests: int = 256,
    drafts: int = 0,
    max_unit: int = 0,
    hybrid_groups: bool = True,
    state_pool: Literal["shared", "separate"] = "shared",
    prefix_cache_state_budget: int = 0,
    read: Path | None = None,
    output: Path | None = None,
) -> None:
    """Plan the memory of a model: groups, blocks, what is lost, and how many requests fit.

    Parameters
    ----------
    model_config
        A Hugging Face config.json, or the directory that holds it.
    memory
        For pages and states, on each GPU, for example 64GiB; one value per pipeline stage if
        they differ.
    max_len
        Tokens of the longest request; what the model states by default.
    block_size
        Tokens; the blocks of all groups are multiples of it.
    kernel_block_size
        Tokens that a kernel sees as one page; block_size by default.
    num_blocks
        Blocks; as many as memory holds by default.
    kv_dtype
        auto (the dtype of the weights), bfloat16, float16, float32, fp8, fp8_ds_mla.
    tensor_parallel
        Ranks that share the heads of every layer.
    pipeline_parallel
        Stages that share the layers.
    max_batch_tokens
        Tokens of one request that may be scheduled and not complete.
    max_requests
        Rows of a separate state pool for running requests.
    drafts
        Draft tokens per step, with the draft layers of the model.
    max_unit
        Bound on the tokens to which hits align; four times block_size by default.
    hybrid_groups
        Off: windows and chunks are kept whole, in one group with full attention.
    state_pool
        Recurrent states in ordinary blocks, or in rows of their own.
    prefix_cache_state_budget
        Rows of a separate state pool for checkpoints.
    read
        Show a plan.json that was written before, instead of planning.
    output
        Directory for plan.json and plan.html.

    """
    console = standard_output()
    try:
        if read is not None:
            made = read_plan(_bytes_of(read))
        else:
            model = read_model(_config(model_config), kv_dtype=_dtype(kv_dtype))
            settings = PlanSettings(
                memory=_memory(memory, pipeline_parallel),
                max_len=_length(max_len, model),
                block_size=block_size,
                kernel_block_size=kernel_block_size,
                num_blocks=num_blocks,
                max_batch_tokens=max_batch_tokens,
                drafts=drafts,
                max_unit=max_unit,
                hybrid_groups=hybrid_groups,
                state_pool=state_pool,
                max_requests=max_requests,
                prefix_cache_state_budget=prefix_cache_state_budget,
            )
            made = make_plan(model, settings, tensor_parallel=tensor_parallel)
    except ConfigError as error:
        raise UsageError(
            str(error), getattr(error, "hint", "") or "see kvproof plan --help"
        ) from error
    _show(made, output, console)


def _show(made: Plan, output: Path | None, console: Console) -> None:
    told = summary(made)
    print_plan(told, console)
    if output is not None:
        store(output / "plan.json", made.to_json())
        page = store(output / "plan.html", render_plan(told).encode())
        console.print(f"\nwritten: {output / 'plan.json'}, {page}", highlight=False, soft_wrap=True)


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
