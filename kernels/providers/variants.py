"""Our own kernels in other forms than the rules choose: the further columns of published tables.

Named by their place: `--compare-with kvproof.kernels.providers.variants:portable`.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version
from typing import Any

import torch

from kvproof.kernels.paged_decode import rules
from kvproof.kernels.paged_decode.launch import paged_decode, shape_of_problem
from kvproof.kernels.paged_decode.workspace import workspace
from kvproof.kernels.paged_prefill import hopper, plans
from kvproof.kernels.paged_prefill.arguments import Inputs
from kvproof.kernels.paged_prefill.launch import paged_prefill
from kvproof.kernels.spec import Arguments, Case, Entry, Launch, Provider


def portable() -> Provider:
    """Decode by the kernel for all GPUs where another one would be chosen."""
    return _provider("portable", "paged_decode", Entry(_portable, _chosen_anyway))


def one_copier() -> Provider:
    """Prefill on Hopper with one warp that copies keys and one that copies values."""
    return _prefill("one_copier", copiers=1, gather=False)


def two_copiers() -> Provider:
    """Prefill on Hopper with two warps each."""
    return _prefill("two_copiers", copiers=2, gather=False)


def gathered() -> Provider:
    """Prefill on Hopper over a copy of the context with pages of 128."""
    return _prefill("gathered", copiers=1, gather=True)


def _provider(name: str, kernel: str, entry: Entry) -> Provider:
    return Provider(name=name, version=version("kvproof"), kernels={kernel: entry})


def _chosen_anyway(case: Case) -> str:
    return "" if case["latent"] else "only latent rows have another kernel"


def _portable(_: Case, arguments: Arguments) -> Launch:
    tensors = (arguments[name] for name in ("q", "k_pages", "v_pages", "out"))
    shape = shape_of_problem(*tensors)
    config = rules.config(shape)
    space = workspace(shape, device=arguments["q"].device, config=config)
    return lambda: paged_decode(**arguments, tables_ready=True, space=space, config=config)


def _prefill(name: str, **changes: Any) -> Provider:
    def prepare(_: Case, arguments: Arguments) -> Launch:
        given = Inputs(**{name: arguments[name] for name in Inputs._fields if name in arguments})
        chosen = plans.choose(given, arguments["longest_query"], arguments["longest"])
        plan = replace(chosen, **changes)
        return lambda: paged_prefill(**arguments, plan=plan)

    return _provider(name, "paged_prefill", Entry(prepare, _without_hopper))


def _without_hopper(case: Case) -> str:
    if not (torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9):
        return "it is a form of the kernel for compute capability 9"
    if case["kv_dtype"] not in ("bf16", "fp16") or int(case["page"]) % hopper.HOPPER_BOX:
        return "pages are copied directly: of the dtype of the query, in multiples of 8 tokens"
    if int(case["new"]) * int(case["heads"]) // int(case["kv_heads"]) < plans.HOPPER_LEAST:
        return f"a KV head has at least {plans.HOPPER_LEAST} query rows; new is {case['new']}"
    return ""
