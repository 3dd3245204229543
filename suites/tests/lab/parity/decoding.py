"""Decode steps through the kernel: `python -m` this module with `--device cuda`.

Runs the same requests with the model's own attention, with the kernel that reads pages, and with
its graphs. Compares logits of the first decode step, with kernel blocks as large as blocks and a
quarter of them; then measures tokens per second of a larger model.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import cyclopts
import torch
import transformers
from rich.console import Console

from kvproof.reference.engine.engine import Engine, Output
from kvproof.reference.engine.engine_config import EngineConfig
from kvproof.reference.model_runner.experts import expert_blocks
from kvproof.reference.model_runner.forward import Attention
from kvproof.reference.model_runner.runner import HuggingFaceModel, cache_config
from kvproof.suites.reference.parity.tiny_models import Writer
from kvproof.suites.tests.lab.parity.cells import versions
from kvproof.suites.tests.lab.parity.tiny_models import build

FAMILIES = ("qwen3", "gpt_oss", "gemma3", "gemma4", "qwen3_moe", "qwen3_next", "falcon_h1")
BLOCK = 16
CLOSE = 0.05
"""Share of the largest logit that 16-bit rounding in another order may change."""
PROMPTS = tuple(Writer(count).text(count) for count in (5, 33, 70, 100))
LARGE = {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 16, "head_dim": 128,
         "num_attention_heads": 16, "num_key_value_heads": 8}  # fmt: skip
app = cyclopts.App(name="decoding")
console = Console(highlight=False)


class Way(NamedTuple):
    """Attention implementation of decode steps."""

    name: str
    attention: Attention
    graphs: bool


WAYS = (
    Way("gather", "gather", graphs=False),
    Way("paged", "paged", graphs=False),
    Way("graphs", "paged", graphs=True),
)


class Answered(NamedTuple):
    """Output of one implementation."""

    answers: list[tuple[int, ...]]
    first: list[torch.Tensor]
    """Logits of each request's first decode step."""
    routes: list[list[int]]
    """Experts of the same step; empty without experts, or where they are not recorded."""
    replays: int
    seconds: float


def answered(
    model: Any, way: Way, prompts: Sequence[tuple[int, ...]], *, new: int, ratio: int, watch: bool
) -> Answered:
    """Serve prompts in one batch; `watch` keeps logits."""
    longest = max(map(len, prompts)) + new
    blocks = 2 + len(prompts) * (2 + longest // BLOCK) * 8
    config = cache_config(
        model, num_blocks=blocks, block_size=BLOCK, kernel_block_size=BLOCK // ratio,
        return_routed_experts=watch and not way.graphs and bool(expert_blocks(model)),
    )  # fmt: skip
    logits: dict[tuple[str, int], torch.Tensor] = {}

    def keep(name: str, start: int, values: torch.Tensor) -> None:
        logits[name, start] = values[-1].float()

    runner = HuggingFaceModel(
        model, config, mode="batched", attention=way.attention, on_logits=keep if watch else None
    )
    runner.forward.graphs &= way.graphs
    engine = Engine(EngineConfig(config, poison_freed=watch), runner)
    for number, prompt in enumerate(prompts):
        engine.add_request(str(number), prompt, max_new_tokens=new)
    engine.step()
    engine.step()
    _wait(model)
    started = time.monotonic()
    done: dict[str, Output] = {}
    while engine.busy:
        done |= {each.request_id: each for each in engine.step() if each.done}
    _wait(model)
    seconds = time.monotonic() - started
    named = [(str(number), len(prompt)) for number, prompt in enumerate(prompts)]
    first = [logits[place] for place in named if watch]
    routes = [_route(done[name], length) for name, length in named]
    answers = [done[name].tokens for name, _ in named]
    return Answered(answers, first, routes, runner.forward.replays, seconds)


def _route(output: Output, position: int) -> list[int]:
    return [] if output.experts is None else output.experts.rows[position].ravel().tolist()


def _wait(model: Any) -> None:
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)


@app.default
def main(*families: str, device: str = "cpu", rows: int = 32, tokens: int = 1024) -> int:
    """Compare and time. `rows` requests of `tokens` tokens are timed, none on a CPU."""
    about = versions(device)
    transformers.logging.set_verbosity_error()
    console.print(f"torch {about.torch}, transformers {about.transformers}, {about.device}")
    failed = 0
    for family in families or FAMILIES:
        model = build(family, torch.bfloat16, device=device)
        for ratio in (1, 4):
            failed += not _agree(model, f"{family}, ratio {ratio}", ratio)
    if device != "cpu":
        _time(device, rows, tokens)
    return 1 if failed else 0


def _agree(model: Any, name: str, ratio: int) -> bool:
    gather, paged, graphs = (
        answered(model, way, PROMPTS, new=20, ratio=ratio, watch=True) for way in WAYS
    )
    far, count = _far(gather, paged), len(PROMPTS)
    alike = sum(map(list.__eq__, gather.routes, paged.routes))
    same = sum(map(tuple.__eq__, gather.answers, paged.answers))
    repeated = paged.answers == graphs.answers and all(map(torch.equal, paged.first, graphs.first))
    holds = far < CLOSE and 2 * alike > count and repeated
    routed = f", of {alike} requests of {count} with the same experts" if any(gather.routes) else ""
    console.print(
        f"{'ok   ' if holds else 'WRONG'} {name}: paged against gather {far:.1e} of the largest "
        f"logit{routed}; {same} of {count} answers equal; graphs ({graphs.replays} replays) "
        f"{'equal' if repeated else 'NOT equal'} to paged bit by bit"
    )
    return holds


def _far(left: Answered, right: Answered) -> float:
    """Return the largest difference of first logits, as a share of the largest of them.

    Leaves out requests that rounding sent to another expert: they compute something else.
    """
    rows = zip(left.first, right.first, left.routes, right.routes, strict=True)
    same = [(one, two) for one, two, mine, other in rows if mine == other]
    return max((float((one - two).abs().max() / one.abs().max()) for one, two in same), default=1.0)


def _time(device: str, rows: int, tokens: int) -> None:
    model = build("qwen3", torch.bfloat16, device=device, **LARGE)
    size = sum(each.numel() for each in model.parameters()) / 1e6
    prompts = [Writer(number).text(tokens - 64) for number in range(rows)]
    for way in (*WAYS, *WAYS):
        new = 64
        found = answered(model, way, prompts, new=new, ratio=4, watch=False)
        rate = rows * (new - 1) / found.seconds
        console.print(f"{way.name}: {rate:.0f} tokens/s, {rows} rows of {tokens}, {size:.0f} M")


if __name__ == "__main__":
    sys.exit(app(result_action="return_value"))
