"""vLLM with its own kernels on a card, 32 layers without weights, beside a watcher.

`kvproof watch -- PYTHON watched_vllm.py load SECONDS`: hundreds of requests at once, with shared
prefixes, salts, aborts and preemptions. `PYTHON watched_vllm.py overhead`: the time of the engine's
step while 64 requests decode, with and without the hooks in turns.
"""

from __future__ import annotations

import gc
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kvproof.harness.recorder import hooks, import_hook
from kvproof.suites.tests.live.full_graphs import ENVIRONMENT, MODEL

WIDE = {
    "hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 32,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "torch_dtype": "bfloat16",
}  # fmt: skip
SIZES: dict[str, Any] = {
    "gpu_memory_utilization": 0.3, "max_model_len": 4096, "max_num_seqs": 256,
    "max_num_batched_tokens": 2048,
}  # fmt: skip
REQUESTS, PROMPT, PAIRS, WARM, STEPS = 64, 1024, 40, 80, 16
"""Requests that decode and their tokens; pairs of turns, steps before them, and steps of a turn."""
LIVE = 320
"""Requests at once in the load."""
DRAIN = """
import sys, time
from pathlib import Path
from kvproof.harness.recorder.ring import SUFFIX, RingReader
rings = {}
while True:
    for path in Path(sys.argv[1]).glob("*" + SUFFIX):
        if path not in rings:
            rings[path] = RingReader(path)
    while any(ring.take() for ring in rings.values()):
        pass
    time.sleep(0.02)
"""


def started(blocks: int) -> Any:
    """Start vLLM in this process, with so many blocks of 2 MB."""
    from vllm import LLM

    folder = tempfile.mkdtemp(prefix="kvproof-model-")
    Path(folder, "config.json").write_text(json.dumps(MODEL | WIDE))
    graphs = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}
    return LLM(
        model=folder, load_format="dummy", skip_tokenizer_init=True, compilation_config=graphs,
        num_gpu_blocks_override=blocks, **SIZES,
    ).llm_engine  # fmt: skip


def greedy(count: int) -> Any:
    from vllm import SamplingParams

    return SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False)


def drawn(draw: random.Random, count: int) -> list[int]:
    return [draw.randrange(1000) for _ in range(count)]


class Load:
    """Requests that come as others end."""

    def __init__(self, engine: Any) -> None:
        self._engine, self._draw, self._live = engine, random.Random(5), set[str]()
        self._heads = [drawn(self._draw, 1500) for _ in range(24)]
        self.came = self.ended = self.aborted = 0

    def step(self) -> None:
        """Fill up, let the engine step, and abort a request now and then."""
        while len(self._live) < LIVE:
            self._submit()
        over = {out.request_id for out in self._engine.step() if out.finished}
        self._live -= over
        self.ended += len(over)
        if self._live and self._draw.random() < 0.1:
            name = self._draw.choice(sorted(self._live))
            self._engine.abort_request([name])
            self._live.remove(name)
            self.aborted += 1

    def _submit(self) -> None:
        draw, name = self._draw, f"r{self.came}"
        shared = draw.choice(self._heads)[: draw.randrange(6, 1500)]
        prompt: dict[str, Any] = {"prompt_token_ids": shared + drawn(draw, draw.randrange(1, 60))}
        if draw.random() < 0.3:
            prompt["cache_salt"] = "tenant"
        self._engine.add_request(name, prompt, greedy(draw.randrange(1, 400)))
        self._live.add(name)
        self.came += 1


def load(seconds: str) -> None:
    """Serve for so long."""
    requests, until = Load(started(6_000)), time.monotonic() + float(seconds)
    while time.monotonic() < until:
        requests.step()
    sys.stdout.write(
        f"{requests.came} requests, {requests.ended} ended, {requests.aborted} aborted\n"
    )


@contextmanager
def unhooked(scheduler: Any) -> Iterator[None]:
    """Run as without kvproof, but for the look at an attribute at each release."""
    manager = scheduler.kv_cache_manager
    kept = getattr(manager, hooks.ATTRIBUTE), manager.allocate_slots, scheduler.schedule
    delattr(manager, hooks.ATTRIBUTE)
    del manager.allocate_slots, scheduler.schedule
    yield
    setattr(manager, hooks.ATTRIBUTE, kept[0])
    manager.allocate_slots, scheduler.schedule = kept[1:]


def timed(engine: Any, count: int) -> float:
    """Return seconds of a step."""
    begun = time.perf_counter()
    for _ in range(count):
        engine.step()
    return (time.perf_counter() - begun) / count


def pair(engine: Any, *, first: bool) -> tuple[float, float]:
    """Return seconds of a step alone and watched; `first`: alone comes first."""
    scheduler, took = engine.engine_core.engine_core.scheduler, {}
    for alone in (first, not first):
        if alone:
            with unhooked(scheduler):
                took[True] = timed(engine, STEPS)
        else:
            took[False] = timed(engine, STEPS)
    return took[True], took[False]


def pairs(engine: Any) -> list[tuple[float, float]]:
    """Return seconds of a step, alone and watched, while all requests decode."""
    draw = random.Random(5)
    for number in range(REQUESTS):
        prompt = {"prompt_token_ids": drawn(draw, PROMPT)}
        engine.add_request(str(number), prompt, greedy(WARM + 2 * PAIRS * STEPS))
    timed(engine, WARM)
    gc.collect()
    gc.freeze()
    return [pair(engine, first=number % 2 == 0) for number in range(PAIRS)]


def overhead() -> None:
    """Print the medians of a step, and its ratio with deciles."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        import_hook.start({import_hook.WATCH: folder})
        with subprocess.Popen([sys.executable, "-c", DRAIN, folder]) as drain:
            found = pairs(started(10_000))
            drain.kill()
    alone, watched = (statistics.median(side) * 1e6 for side in zip(*found, strict=True))
    ratios = [both / one for one, both in found]
    low, *_, high = statistics.quantiles(ratios, n=10)
    sys.stdout.write(
        f"a step of {REQUESTS} requests: {alone:.0f} us, watched {watched:.0f} us, ratio "
        f"{statistics.median(ratios):.3f} ({low:.3f} to {high:.3f}), {len(found)} pairs\n"
    )


if __name__ == "__main__":
    os.environ |= ENVIRONMENT
    globals()[sys.argv[1]](*sys.argv[2:])
