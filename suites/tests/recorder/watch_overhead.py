"""What watching costs the engine's thread in a step of vLLM's scheduler: many requests decode.

A program for the environment of vLLM that kvproof targets list names:

    FOLDER/bin/python suites/tests/recorder/watch_overhead.py [REQUESTS [TOKENS]]

Three schedulers take turns: alone, recorded into files, watched through shared memory that a
process drains. Times are CPU time of the thread, since other work on the machine would be noise.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import statistics
import sys
import tempfile
import time
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
package = types.ModuleType("kvproof")
package.__path__ = [str(ROOT)]
sys.modules.setdefault("kvproof", package)
sys.path.insert(0, str(Path(__file__).parent))

from kvproof.harness.recorder import hooks, import_hook  # noqa: E402 - the package is made above
from kvproof.harness.recorder.ring import SUFFIX, RingReader  # noqa: E402 - as above

SIDES = ("alone", "recorded", "watched")
ROUNDS, WARM, STEPS = 100, 10, 16
SIZE = 16


class Scheduler:
    """One of vLLM's, whose requests decode for ever."""

    def __init__(self, requests: int, tokens: int) -> None:
        import record_jobs
        from vllm.sampling_params import SamplingParams
        from vllm.utils.hashing import get_hash_fn_by_name
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.request import Request

        hashed, draw = get_hash_fn_by_name("sha256"), random.Random(1)
        init_none_hash(hashed)
        hasher = get_request_block_hasher(SIZE, hashed)
        longest = tokens + (ROUNDS + 2) * STEPS
        record_jobs.SIZE, record_jobs.BLOCKS = SIZE, requests * (longest // SIZE + 2)
        self._scheduler: Any = record_jobs.vllm_scheduler(
            ahead=False, most=requests, budget=requests * tokens, longest=longest
        )
        for number in range(requests):
            prompt = [draw.randrange(50_000) for _ in range(tokens)]
            sampling = SamplingParams(max_tokens=longest)
            request = Request(str(number), prompt, sampling, None, block_hasher=hasher)
            self._scheduler.add_request(request)
        self.steps(STEPS)

    def steps(self, count: int) -> float:
        """Run steps; returns CPU seconds of each."""
        from vllm.v1.outputs import ModelRunnerOutput

        scheduler, begun = self._scheduler, time.thread_time()
        for _ in range(count):
            out = scheduler.schedule()
            names = list(out.num_scheduled_tokens)
            ran = ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: index for index, name in enumerate(names)},
                sampled_token_ids=[[7]] * len(names),
                logprobs=None,
                prompt_logprobs_dict={},
                pooler_output=[],
            )
            scheduler.update_from_output(out, ran)
        return (time.thread_time() - begun) / count

    def unhook(self) -> None:
        """Run as without kvproof, but for the look at an attribute at each release."""
        manager = self._scheduler.kv_cache_manager
        delattr(manager, hooks.ATTRIBUTE)
        del manager.allocate_slots  # that of its class is the engine's own
        del self._scheduler.schedule


@contextmanager
def drained(folder: Path) -> Iterator[None]:
    """Take all lines in a process of their own, until the end."""
    child = os.fork()
    if child == 0:
        rings: dict[Path, RingReader] = {}
        while True:
            for path in folder.glob(f"*{SUFFIX}"):
                if path not in rings:  # each reader that joins asks for a new beginning
                    rings[path] = RingReader(path)
            while any(ring.take() for ring in rings.values()):
                pass
            time.sleep(0.02)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def made(side: str, folder: Path, sizes: tuple[int, int]) -> Scheduler:
    """A scheduler of one side; the hooks ask their settings when a cache is made."""
    variable = import_hook.WATCH if side == "watched" else import_hook.DIRECTORY
    settings = import_hook.settings_from({variable: str(folder)})
    assert settings is not None
    chosen[:] = [settings]
    scheduler = Scheduler(*sizes)
    if side == "alone":
        scheduler.unhook()
    return scheduler


chosen: list[Any] = []
"""Settings of the cache that is made next."""


def measure(sizes: tuple[int, int]) -> dict[str, list[float]]:
    """Seconds of a step by side and round."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name, drained(Path(name)):
        import vllm.v1.core.kv_cache_manager as module
        import vllm.v1.core.sched.scheduler as loop

        from kvproof.harness.recorder import vllm as vllm_hooks
        from kvproof.harness.recorder import vllm_loop

        first = import_hook.settings_from({import_hook.WATCH: name})
        begin = hooks.begin
        hooks.begin = lambda owner, what, _, tokens: begin(owner, what, chosen[0], tokens)
        vllm_hooks.hook(module, first)
        vllm_loop.hook(loop, first)
        schedulers = {side: made(side, Path(name), sizes) for side in SIDES}
        gc.collect()
        gc.freeze()  # as vLLM does once it has started
        took: dict[str, list[float]] = {side: [] for side in SIDES}
        for number in range(ROUNDS):
            order = SIDES[number % 3 :] + SIDES[: number % 3]
            for side in order:
                took[side].append(schedulers[side].steps(STEPS))
    return {side: rounds[WARM:] for side, rounds in took.items()}


def main() -> None:
    """Print the median step of each side, and its ratio to the engine alone with its deciles."""
    requests, tokens = (*map(int, sys.argv[1:]), *(64, 1024)[len(sys.argv) - 1 :])
    took = measure((requests, tokens))
    for side, rounds in took.items():
        ratios = [one / alone for one, alone in zip(rounds, took["alone"], strict=True)]
        extra = [(one - alone) * 1e6 for one, alone in zip(rounds, took["alone"], strict=True)]
        low, *_, high = statistics.quantiles(ratios, n=10)
        sys.stdout.write(
            f"{requests} requests of {tokens} tokens, {side}: {statistics.median(rounds) * 1e6:.0f}"
            f" us a step, ratio {statistics.median(ratios):.3f} ({low:.3f} to {high:.3f}), "
            f"{statistics.median(extra):+.0f} us\n"
        )


if __name__ == "__main__":
    main()
