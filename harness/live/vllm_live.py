"""vLLM's own engine with its own kernels on a card, under drawn requests and three oracles.

`python -m kvproof.harness.live.vllm_live [--model KIND] [--histories N] [--seed N] [--faults]`
serves a tiny model with random weights, in one process, and writes a line of JSON for each history.
The engine stays; its cache is reset between histories. Exit code 0: each oracle passes; 1: one
fails; 3: not run, or inconclusive.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple

from kvproof.harness.live import answers
from kvproof.harness.live.answers import Answer
from kvproof.harness.live.vllm_faults import FAULTS

RELEASE = "0.33.0"
_SIZES = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 4096,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MODELS: dict[str, dict[str, Any]] = {
    "dense": {
        **_SIZES,
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_act": "silu",
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    },
    "windows": {
        **_SIZES,
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 64,
        "sliding_window": 96,
        "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
    },
}
"""Tiny models with random weights, by the kind of their caches."""
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    "VLLM_BATCH_INVARIANT": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
}
ORACLES = ("answers", "tables", "content")
IDS = range(5, 4000)
BUDGET = 255
"""Tokens of a step."""
IN_FLIGHT = 4
"""Steps that may be under way when the last request has ended."""


class Drawn(NamedTuple):
    """A request of a history."""

    name: str
    prompt: list[int]
    answers: int
    salt: str
    abort_after: int
    """Steps until it is aborted; 0: it is not."""


@dataclass
class Served:
    """One history."""

    drawn: dict[str, Drawn] = field(default_factory=dict)
    answers: dict[str, Answer] = field(default_factory=dict)
    cached: int = 0
    """Tokens of prompts that were hits."""
    steps: int = 0


def not_run() -> str:
    """Return why no engine can be started here; empty: one can."""
    if find_spec("vllm") is None:
        return f"vLLM is not installed: vllm-live needs vllm=={RELEASE} with its own kernels"
    import torch

    if not torch.cuda.is_available():
        return "there is no CUDA device: vllm-live runs vLLM's own kernels"
    return ""


class Live:
    """One engine, reused from history to history."""

    def __init__(self, model: str, *, blocks: int, budget: int, eager: bool, share: float) -> None:
        os.environ.update(ENVIRONMENT)
        from vllm import LLM

        from kvproof.harness.live.vllm_hooks import Hooks

        folder = Path(mkdtemp(prefix="kvproof-live-"))
        (folder / "config.json").write_text(json.dumps(MODELS[model]), encoding="utf-8")
        self.engine = LLM(
            model=str(folder),
            load_format="dummy",
            skip_tokenizer_init=True,
            enforce_eager=eager,
            dtype="bfloat16",
            seed=0,
            gpu_memory_utilization=0.2,
            kv_cache_memory_bytes=1 << 28,
            max_model_len=2048,
            max_num_seqs=16,
            max_num_batched_tokens=budget,
            num_gpu_blocks_override=blocks,
            enable_prefix_caching=True,
            logprobs_mode="raw_logits",  # the sum of a softmax depends on the company
        ).llm_engine
        core: Any = self.engine.engine_core
        runner = core.engine_core.model_executor.driver_worker.worker.model_runner
        _fill(runner.model)
        self.salts: dict[str, int] = {}
        self.hooks = Hooks(runner, self.salts, share=share)
        self.seen = self.hooks.seen()

    def serve(self, rng: random.Random, count: int, label: str) -> Served:
        """Serve drawn requests that come while others run."""
        served, left, aborts = Served(), count, {}
        families = [_ids(rng, rng.choice((40, 130, 300, 600))) for _ in range(4)]
        while left or self.engine.has_unfinished_requests():
            for _ in range(min(left, rng.choice((0, 0, 1, 1, 2, 4)))):
                left -= 1
                drawn = _draw(rng, families, served, f"{label}.{count - left}")
                served.drawn[drawn.name] = drawn
                self.add(drawn)
                if drawn.abort_after:
                    aborts[drawn.name] = served.steps + drawn.abort_after
            for name in [name for name, step in aborts.items() if step <= served.steps]:
                del aborts[name]
                self.engine.abort_request([name], internal=True)
            self._step(served)
        return served

    def add(self, drawn: Drawn, *, reads: bool = True) -> None:
        """Add one request; `reads`: it may hit the cache."""
        from vllm import SamplingParams

        self.salts[drawn.name] = hash_of(drawn.salt)
        prompt: dict[str, Any] = {"prompt_token_ids": drawn.prompt}
        if drawn.salt:
            prompt["cache_salt"] = drawn.salt
        params = SamplingParams(
            temperature=0,
            max_tokens=drawn.answers,
            logprobs=0,
            ignore_eos=True,
            detokenize=False,
            skip_reading_prefix_cache=not reads,
        )
        self.engine.add_request(drawn.name, prompt, params)

    def _step(self, served: Served) -> None:
        served.steps += 1
        for output in self.engine.step():
            first = output.outputs[0]
            values = (each[token].logprob for token, each in zip(first.token_ids, first.logprobs))  # noqa: B905 - of one list each
            served.answers[output.request_id] = Answer(tuple(first.token_ids), tuple(values))
            if output.finished:
                served.cached += output.num_cached_tokens or 0

    def cold(self, drawn: Sequence[Drawn], *, together: bool) -> dict[str, Answer]:
        """Answer requests without a hit or a fault, one after the other or all at once."""
        found: dict[str, Answer] = {}
        planted, self.hooks.fault = self.hooks.fault, None
        for batch in [list(drawn)] if together else [[each] for each in drawn]:
            self.reset()
            own = Served()
            for each in batch:
                self.add(each, reads=False)
            while self.engine.has_unfinished_requests():
                self._step(own)
            found |= own.answers
        self.hooks.fault = planted
        return found

    def reset(self) -> None:
        """Forget all content. Raises RuntimeError where the engine refuses."""
        for _ in range(IN_FLIGHT):
            if self.engine.reset_prefix_cache():
                return
            self.engine.step()  # a step that was scheduled ahead still holds its blocks
        raise RuntimeError("the engine holds blocks without a request")


def _fill(model: Any) -> None:
    """Draw weights of usual size: those of `dummy` are so small that attention hardly counts."""
    import torch

    source = torch.Generator("cuda").manual_seed(0)
    for weight in model.parameters():
        if weight.dim() == 2:
            weight.data.normal_(0, weight.shape[1] ** -0.5, generator=source)
        else:
            weight.data.fill_(1)


def hash_of(salt: str) -> int:
    """Return the number of a name space; 0 for none."""
    return int.from_bytes(salt.encode(), "little")


def _ids(rng: random.Random, count: int) -> list[int]:
    return [rng.choice(IDS) for _ in range(count)]


def _draw(rng: random.Random, families: Sequence[list[int]], served: Served, name: str) -> Drawn:
    ended = [each for each in served.answers if served.drawn[each].abort_after == 0]
    salt = rng.choice(("", "", "", "a"))
    if ended and rng.random() < 0.4:  # the next turn
        before = served.drawn[rng.choice(ended)]
        prompt = before.prompt + list(served.answers[before.name].tokens)
        salt = before.salt
    else:
        family = rng.choice(families)
        prompt = family[: rng.randint(1, len(family))]
    prompt = prompt[:1800] + _ids(rng, rng.choice((0, 1, 5, 16, 40)))
    abort = rng.randint(1, 12) if rng.random() < 0.12 else 0
    return Drawn(name, prompt, rng.choice((1, 4, 17, 40)), salt, abort)


def judge(live: Live, served: Served, *, compared: int) -> dict[str, Any]:
    """Return the verdicts of the three oracles on one history; `compared` answers at most."""
    prompts = {name: each.prompt for name, each in served.drawn.items()}
    slots = live.hooks.tables.checked
    told = live.hooks.judge(prompts)
    judged_slots = live.hooks.tables.checked - slots
    names = [name for name in served.drawn if name in served.answers][:compared]
    drawn = [served.drawn[name] for name in names]
    cold = live.cold(drawn, together=False)
    again = live.cold(drawn, together=True)
    live.hooks.judge(prompts)  # launches of the cold engine
    live.reset()
    before, live.seen = live.seen, live.hooks.seen()
    wrong = sum(each.wrong for each in live.seen) - sum(each.wrong for each in before)
    judged = answers.judge({name: served.answers[name] for name in names}, cold, again)
    return {
        "requests": len(served.drawn),
        "steps": served.steps,
        "cached": served.cached,
        "answers": judged.verdict,
        "answers_sentence": judged.sentence,
        "tables": "fail" if told else "pass",
        "tables_sentence": (told or [f"{judged_slots} slots"])[0],
        "content": "fail" if wrong else "pass",
        "content_sentence": f"{wrong} wrong; {', '.join(map(str, live.seen))}",
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run histories; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--model", choices=list(MODELS), default="dense")
    parser.add_argument("--histories", type=int, default=4)
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--compared", type=int, default=24, help="answers given by a cold engine")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--blocks", type=int, default=260)
    parser.add_argument("--budget", type=int, default=BUDGET, help="most tokens of a step")
    parser.add_argument("--share", type=float, default=1.0, help="requests checked in a step")
    parser.add_argument("--graphs", action="store_true")
    parser.add_argument("--faults", action="store_true", help="plant each fault after them")
    given = parser.parse_args(arguments)
    if why := not_run():
        sys.stdout.write(f"NOT RUN: vllm-live=={RELEASE}: {why}\n")
        return 3
    live = Live(
        given.model,
        blocks=given.blocks,
        budget=given.budget,
        eager=not given.graphs,
        share=given.share,
    )
    begun = time.monotonic()
    verdicts = [history(live, given, given.seed + at) for at in range(given.histories)]
    minutes = (time.monotonic() - begun) / 60
    _tell(f"{given.histories / minutes:.1f} histories a minute")
    if given.faults:
        _tell(_planted(live, given))
    every = {each[name] for each in verdicts for name in ORACLES}
    return 1 if "fail" in every else 3 if "inconclusive" in every else 0


def history(live: Live, given: argparse.Namespace, seed: int, fault: str = "") -> dict[str, Any]:
    """Serve and judge one history; returns its line."""
    rng = random.Random(seed)  # noqa: S311 - no secret
    served = live.serve(rng, given.requests, f"{fault or 'h'}{seed}")
    found = {"seed": seed, **judge(live, served, compared=given.compared)}
    _tell(json.dumps({"fault": fault, **found} if fault else found))
    return found


def _planted(live: Live, given: argparse.Namespace) -> str:
    """Plant one fault after the other; returns a table of the verdicts."""
    rows = [
        "| planted fault | steps | answers | tables | content |",
        "| --- | --- | --- | --- | --- |",
    ]
    for at, (name, fault) in enumerate(FAULTS.items()):
        live.hooks.fault = planted = fault()
        found = history(live, given, given.seed + 100 + at, name)
        live.hooks.fault = None
        cells = [name, str(planted.struck), *(found[oracle] for oracle in ORACLES)]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
