"""Programs below `kvproof watch`: toy engines, and vLLM's scheduler that serves at some pace.

`python watch_jobs.py JOB`; a toy needs kvproof's own Python, vLLM its environment.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

FAULTED_AFTER = 12
"""Requests that vLLM has served before the bug is planted."""


def _toy(engine: Any) -> None:
    """Make a cache as an engine with the recorder in it does."""
    from kvproof.harness.recorder import hooks, import_hook
    from kvproof.harness.recorder.entry import Arrival
    from kvproof.harness.recorder.log_writer import Cache, LogWriter

    settings = import_hook.settings_from(os.environ)
    assert settings is not None
    hooks.begin(
        engine, lambda _: Cache("toy", "1", 64, 4), settings, lambda tokens, a, b: tokens[a:b]
    )
    writer: LogWriter = hooks.writer_of(engine)  # type: ignore[assignment]  # it was just made
    prompt = list(range(12))
    for name, hit, blocks in (("first", 0, [1, 2, 3]), ("second", 8, [1, 2, 4])):
        tokens, salt = prompt[:10], engine.salts.get(name)
        writer.admit(tokens, Arrival(name, salt=salt), known=10, hit=hit, stop=10, blocks=blocks)
        writer.release(name, "finish", blocks)


def toy() -> None:
    """A sound engine that ends."""
    _toy(SimpleNamespace(salts={}))


def salted() -> None:
    """A hit across salts."""
    _toy(SimpleNamespace(salts={"second": "tenant"}))


def fails() -> None:
    """A sound engine that ends with a code of its own."""
    toy()
    raise SystemExit(7)


def refused() -> None:
    """A cache that cannot be judged."""
    from kvproof.harness.recorder import hooks, import_hook

    settings = import_hook.settings_from(os.environ)
    assert settings is not None
    hooks.begin(SimpleNamespace(), lambda _: "its layers forget", settings, lambda *_: ())


def serves() -> None:
    """Serve until a signal, of which each is written down."""
    received: list[int] = []
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda number, _: received.append(number))
    toy()
    Path("serving").write_text(str(os.getpid()))
    until = time.monotonic() + 60
    while not received and time.monotonic() < until:
        time.sleep(0.02)
    time.sleep(0.2)  # a second signal would come now
    Path("received").write_text(" ".join(map(str, received)))


def vllm(fault: str, requests: str, kinds: str = "") -> None:
    """vLLM's scheduler with a bug that is planted while it serves."""
    sys.path.insert(0, str(Path(__file__).parent))
    import record_jobs

    draw = random.Random(1)
    specs: Any = ()
    if kinds:
        import group_jobs

        specs = group_jobs.specs(kinds)
    engine = record_jobs.Vllm(draw, ahead=fault == "ahead", specs=specs)
    heads = [[draw.randrange(50) for _ in range(40)] for _ in range(3)]
    for number in range(1, int(requests) + 1):
        if number == FAULTED_AFTER:
            record_jobs.FAULTS[fault](engine)
        prompt = [*draw.choice(heads)[: draw.randrange(6, 40)], 60 + draw.randrange(9)]
        engine.add(f"request-{number}", prompt, draw.randrange(1, 24),
                   draw.choice((None, "tenant")))  # fmt: skip
        try:
            for _ in range(4):
                engine.step()
        except (AssertionError, RuntimeError, ValueError):
            if fault in record_jobs.SOUND:
                raise
            engine = record_jobs.Vllm(draw, ahead=False)
        time.sleep(0.02)
    sys.stdout.write(f"served {requests}\n")


def load(seconds: str, kinds: str = "full4 window4") -> None:
    """Hundreds of requests at once for so long, with aborts, preemptions and resets."""
    sys.path.insert(0, str(Path(__file__).parent))
    import group_jobs
    import record_jobs

    draw, number = random.Random(1), 0
    record_jobs.BLOCKS, record_jobs.MOST = 3000, (256, 2048)
    engine = record_jobs.Vllm(draw, ahead=False, specs=group_jobs.specs(kinds))
    heads = [[draw.randrange(50) for _ in range(120)] for _ in range(20)]
    until = time.monotonic() + float(seconds)
    while time.monotonic() < until:
        while len(engine.scheduler.requests) < 320:
            number += 1
            prompt = [*draw.choice(heads)[: draw.randrange(6, 120)], 60 + draw.randrange(900)]
            engine.add(f"request-{number}", prompt, draw.randrange(1, 90),
                       draw.choice((None, "tenant")))  # fmt: skip
        engine.step()
        if draw.random() < 0.2:
            engine.abort(draw.choice(list(engine.scheduler.requests)))
        if draw.random() < 0.001:
            engine.reset()
        time.sleep(0.01)
    sys.stdout.write(f"served {number}\n")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
