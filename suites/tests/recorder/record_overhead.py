"""What recording costs vLLM's cache manager, per call, with and without, interleaved.

A program for the environment of vLLM that kvproof targets list names:

    FOLDER/bin/python suites/tests/recorder/record_overhead.py [--hash]

Times are CPU time of the thread, since other work on the machine would be noise.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
import types
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

package = types.ModuleType("kvproof")
package.__path__ = [str(Path(__file__).resolve().parents[3])]
sys.modules.setdefault("kvproof", package)

from kvproof.harness.adapters.vllm import api as vllm_api  # noqa: E402 - the package is made above
from kvproof.harness.contract.target import TargetConfig  # noqa: E402 - as above
from kvproof.harness.recorder import hooks, import_hook  # noqa: E402 - as above

ROUNDS, WARM = 14, 2
REQUESTS, SHARED, OWN, DECODED = 40, 3072, 1024, 200


def manager(*, recorded: bool) -> Any:
    """A manager of 20,000 blocks of 16 tokens."""
    made = vllm_api.new_manager(TargetConfig(num_blocks=20_000, block_size=16))
    if not recorded:
        delattr(made, hooks.ATTRIBUTE)
    return made


def serve(made: Any, draw: random.Random, heads: list[list[int]], hasher: Any) -> dict[str, float]:
    """Seconds per call: admissions, then decoding steps of all, then releases."""
    names = vllm_api.engine()
    sampling = names.SamplingParams(max_tokens=1 << 20)
    requests = [
        names.Request(
            str(draw.random()),
            draw.choice(heads) + [draw.randrange(50_000) for _ in range(OWN)],
            sampling,
            None,
            block_hasher=hasher,
        )
        for _ in range(REQUESTS)
    ]
    marks = [time.thread_time()]
    for request in requests:
        made.new_step_starts()
        blocks, hit, _ = made.get_computed_blocks(request)
        made.allocate_slots(request, request.num_tokens - hit, hit, blocks)
        request.num_computed_tokens = request.num_tokens
    marks.append(time.thread_time())
    for _ in range(DECODED):
        made.new_step_starts()
        for request in requests:
            request.append_output_token_ids(7)
            made.allocate_slots(request, 1)
            request.num_computed_tokens += 1
    marks.append(time.thread_time())
    for request in requests:
        made.free(request)
    marks.append(time.thread_time())
    took = [stop - start for start, stop in pairwise(marks)]
    calls = (REQUESTS, REQUESTS * DECODED, REQUESTS)
    kinds = (f"admission of {SHARED + OWN} tokens", "decoding step of a request", "release")
    return {kind: one / count for kind, one, count in zip(kinds, took, calls, strict=True)}


def main() -> None:
    """Print the median of each, and the median and deciles of the ratios."""
    with tempfile.TemporaryDirectory() as folder:
        import_hook.start(
            {
                import_hook.DIRECTORY: folder,
                import_hook.KEY: "00" * 32 if "--hash" in sys.argv else "",
            }
        )
        draw = random.Random(1)
        heads = [[draw.randrange(50_000) for _ in range(SHARED)] for _ in range(8)]
        hasher = vllm_api.hasher(16, "sha256")
        sides = (manager(recorded=False), manager(recorded=True))
        times: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
        for number in range(ROUNDS):
            for side in (0, 1) if number % 2 else (1, 0):
                for kind, seconds in serve(sides[side], draw, heads, hasher).items():
                    times[kind][side].append(seconds)
    for kind, (without, recorded) in times.items():
        ratios = [b / a for a, b in zip(without[WARM:], recorded[WARM:], strict=True)]
        low, *_, high = statistics.quantiles(ratios, n=10)
        before, after = (statistics.median(side[WARM:]) * 1e6 for side in (without, recorded))
        sys.stdout.write(
            f"{kind}: {before:.1f} us, recorded {after:.1f} us, ratio "
            f"{statistics.median(ratios):.2f} ({low:.2f} to {high:.2f})\n"
        )


if __name__ == "__main__":
    main()
