"""`kvproof plan`: plan the memory of a model, or show a plan that was written before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from kvproof.harness.cli.arguments.plan import PlanOptions
from kvproof.harness.cli.output import standard_output
from kvproof.harness.cli.sizes import size_of
from kvproof.harness.decoding import NotValid, parse_json, read_file
from kvproof.harness.errors import UsageError
from kvproof.harness.records.run_directory import refuse_record, store
from kvproof.reference.core.cache_config import ConfigError
from kvproof.reference.planner.hf_config import read_model
from kvproof.reference.planner.hf_fields import KV_DTYPES
from kvproof.reference.planner.layer_spec import ModelSpec, PlanError
from kvproof.reference.planner.plan import Plan, PlanSettings
from kvproof.reference.planner.planner import make_plan
from kvproof.reference.planner.rules import read_plan
from kvproof.reference.planner.summary import summary
from kvproof.reference.transfer.chunk_layout import LayoutError
from kvproof.reports.render.plan_page import print_plan, render_plan

MOST_STAGES = 4096


def plan(options: PlanOptions) -> None:
    """Make or read a plan, print it, and write it to `output`. Raises UsageError."""
    console = standard_output()
    try:
        made = _make(options) if options.read is None else read_plan(_bytes_of(options.read))
    except ConfigError as error:
        raise UsageError(
            str(error), getattr(error, "hint", "") or "see kvproof plan --help"
        ) from error
    try:
        _show(made, options.output, console)
    except LayoutError as error:  # of a file, whose caches nothing else measures
        raise UsageError(f"the plan contradicts itself: {error}", "plan again") from error


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
        context_parallel=options.context_parallel,
        interleave=options.interleave,
    )
    return make_plan(model, settings, tensor_parallel=options.tensor_parallel)


def _show(made: Plan, output: Path | None, console: Console) -> None:
    found, written = summary(made), ""
    if output is not None:
        refuse_record(output)
        store(output / "plan.json", made.to_json())
        page = store(output / "plan.html", render_plan(found).encode())
        written = f"\nwritten: {output / 'plan.json'}, {page}"
    print_plan(found, console)
    console.print(written, markup=False, highlight=False, soft_wrap=True, end="\n" * bool(written))


def _bytes_of(path: Path) -> bytes:
    hint = "give a config.json or its folder, or with --read a plan.json"
    return read_file(path, what="the model", hint=hint)


def _config(path: Path | None) -> dict[str, Any]:
    if path is None:
        raise UsageError("there is no model to plan for", "give --model-config config.json")
    data = _bytes_of(path / "config.json" if path.is_dir() else path)
    try:
        config = parse_json(data)
    except NotValid as error:
        raise UsageError(f"{str(path)!r} cannot be used: {error}", "give a config.json") from error
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
    sizes = [size_of(item) for text in given or () for item in text.split(",")]
    if not sizes:
        raise UsageError("there is no memory to plan", "for example --memory 64GiB")
    if not 1 <= stages <= MOST_STAGES or len(sizes) not in (1, stages):
        raise UsageError(
            f"{len(sizes)} sizes of memory for {stages} pipeline stages",
            "give one size for all stages, or one for each",
        )
    return tuple(sizes * stages if len(sizes) == 1 else sizes)
