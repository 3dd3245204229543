"""vLLM's Triton kernels for one step of recurrent layers: the delta rule of FLA, and Mamba2."""

from __future__ import annotations

from typing import Any

import torch

from kvproof.kernels.providers.engine import Engine, allocating
from kvproof.kernels.spec import Arguments, Case, Entry, Launch

DELTA = "vllm.third_party.flash_linear_attention.ops.fused_recurrent"
MAMBA2 = "vllm.model_executor.layers.mamba.ops.mamba_ssm"


def steps(engine: Engine) -> Entry:
    """Both rules by the kernels that keep the state after each draft."""

    def prepare(case: Case, arguments: Arguments) -> Launch:
        if arguments["delta"]:
            return _delta(engine, arguments)
        return _mamba2(engine, case, arguments)

    return Entry(prepare, _cannot)


def _cannot(case: Case) -> str:
    if case["padding"]:
        return "outputs of requests without a state are not zeros"
    if case["slices"] and case["rule"] == "delta":
        return "vectors are contiguous"
    return ""


def _delta(engine: Engine, arguments: Arguments) -> Launch:
    """The row that is read follows those that are written, as if all of them were accepted."""
    take = engine.load(DELTA, "fused_recurrent_gated_delta_rule_fwd")
    sources, rows = arguments["sources"], arguments["rows"]
    q, out = arguments["q"][None], arguments["out"][None]
    options: dict[str, Any] = {
        "q": allocating(q, out[None]),
        "k": arguments["k"][None],
        "v": arguments["v"][None],
        "g": arguments["decays"][None],
        "beta": arguments["strengths"][None],
        "scale": arguments["scale"],
        "initial_state": arguments["states"],
        "cu_seqlens": _starts(arguments),
        "ssm_state_indices": torch.cat([rows, sources[:, None]], 1),
        "num_accepted_tokens": torch.full_like(sources, rows.shape[1] + 1),
        "use_qk_l2norm_in_kernel": arguments["normalised"],
    }

    def launch() -> None:
        take(**options)

    return launch


def _starts(arguments: Arguments) -> torch.Tensor:
    """Without them, requests have one token each."""
    if (given := arguments["query_starts"]) is not None:
        starts: torch.Tensor = given
        return starts
    sources = arguments["sources"]
    return torch.arange(len(sources) + 1, dtype=torch.int32, device=sources.device)


def _mamba2(engine: Engine, case: Case, arguments: Arguments) -> Launch:
    take = engine.load(MAMBA2, "selective_state_update")
    x, states, sources = (arguments[name] for name in ("v", "states", "sources"))
    heads, size, columns = states.shape[1:]
    none = torch.zeros(heads, device=x.device)
    skips, bias = (
        none if arguments[name] is None else arguments[name] for name in ("skips", "bias")
    )
    options: dict[str, Any] = {
        "state": states,
        "x": x,
        "dt": arguments["strengths"][..., None].expand(x.shape),
        "A": arguments["decays"][:, None, None].expand(heads, size, columns),
        "B": arguments["k"],
        "C": arguments["q"],
        "D": skips[:, None].expand(heads, size),
        "dt_bias": bias[:, None].expand(heads, size),
        "dt_softplus": True,
        "state_batch_indices": sources[:, None],
        "dst_state_batch_indices": arguments["rows"],
        "out": arguments["out"],
    }
    if arguments["query_starts"] is not None or case["kept"] == "none":
        options["num_accepted_tokens"] = torch.ones_like(sources)
        options["cu_seqlens"] = _starts(arguments)
    return lambda: take(**options)
