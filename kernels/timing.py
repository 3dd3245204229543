"""Time of launches on a GPU, and the state of the machine during the measurement."""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version

import torch

from kvproof.kernels.spec import Launch, Value

TIMED_SECONDS = 1e-3
"""Minimum seconds of a replay: events and the start of a graph cost a few microseconds."""

WARM_SECONDS = 0.05
"""Seconds of work before the first sample. Right after a check against float64, samples of one of
twelve decode shapes were up to 15 % slower on an H200 (medians of 271 and 277 us, after this work
243 and 242); those of the others were not."""

MOST_NODES = 1024
"""Most launches in one graph; the shortest kernels reach `TIMED_SECONDS` with this many."""

COLD = 5
"""A rotation covers this many times the L2 cache, so that no set is still cached on its return."""


class Samples(list[float]):
    """Seconds per launch, one sample per replay, as measured.

    `why_eager` is empty if the launches were replayed as a CUDA graph. Otherwise it is the reason,
    and the samples include the host's launch cost.
    """

    why_eager: str = ""
    clocks: dict[str, Value] = {}  # noqa: RUF012 - replaced, never changed
    """The state of the device at work; see `clocks`."""


def measure(launches: Sequence[Launch], *, replays: int = 9) -> Samples:
    """Seconds per launch over a rotation of launches, one sample for each replay.

    Every launch runs once before, so kernels are compiled; then the rotation is captured as one
    CUDA graph, repeated until a replay lasts `TIMED_SECONDS`. `rotation` returns the number of
    input sets with which no launch finds its inputs in the cache.

    Raises RuntimeError without a GPU, or if a launch fails.
    """
    if not torch.cuda.is_available():
        raise RuntimeError("there is no GPU: no time is taken without one")
    work, count, why_eager = _prepared(launches)
    _warm(work)
    state = clocks()
    samples = Samples(seconds / count for seconds in _replayed(work, replays))
    samples.why_eager, samples.clocks = why_eager, state
    return samples


def rotation(bytes_per_set: int, l2_bytes: int) -> int:
    """Number of input sets that together cover `COLD` times the L2 cache."""
    return max(1, -(-COLD * l2_bytes // max(1, bytes_per_set)))


def clocks() -> dict[str, Value]:
    """SM and memory clock (MHz), power (W), temperature (C) and throttle reasons; without a GPU {}.

    Clocks drop within milliseconds of the last kernel: call it while kernels run.
    """
    executable = shutil.which("nvidia-smi")
    if executable is None or not torch.cuda.is_available():
        return {}
    uuid = torch.cuda.get_device_properties().uuid
    query = [executable, f"--id=GPU-{uuid}", f"--query-gpu={','.join(_FIELDS)}"]
    done = subprocess.run(  # noqa: S603 - the command is fixed but for the identity of the device
        [*query, "--format=csv,noheader,nounits"],
        capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip
    cells = [cell.strip() for cell in done.stdout.split(",")]
    return _clock_values(cells) if done.returncode == 0 and len(cells) == len(_FIELDS) else {}


def device_facts() -> dict[str, Value]:
    """Conditions of the figures: the GPU with its sizes in bytes, and the versions."""
    versions = {name: _version(name) for name in ("torch", "triton")}
    facts: dict[str, Value] = {"python": platform.python_version(), **versions}
    if not torch.cuda.is_available():
        return {"name": "cpu", **facts}
    properties = torch.cuda.get_device_properties()
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "sms": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
        "shared_bytes_per_block": properties.shared_memory_per_block_optin,
        "memory_bytes": properties.total_memory,
        "cuda": str(torch.version.cuda),
        **facts,
    }


_FIELDS = (
    "clocks.sm", "clocks.mem", "power.draw", "temperature.gpu",
    "clocks_throttle_reasons.active", "driver_version",
)  # fmt: skip

_REASONS = (
    "idle", "application clocks", "software power cap", "hardware slowdown", "sync boost",
    "software thermal", "hardware thermal", "power brake", "display clocks",
)  # fmt: skip
"""Bits of the throttle mask, lowest first."""


def _clock_values(cells: Sequence[str]) -> dict[str, Value]:
    sm, memory, power, temperature, mask, driver = cells
    bits = int(mask, 16) if mask.startswith("0x") else 0
    reasons = [name for bit, name in enumerate(_REASONS) if bits >> bit & 1]
    values = {"sm_mhz": sm, "memory_mhz": memory, "watts": power, "celsius": temperature}
    numbers = {name: float(text) for name, text in values.items() if _is_number(text)}
    return {**numbers, "throttle": ", ".join(reasons), "driver": driver}


def _is_number(text: str) -> bool:
    """Virtual GPUs answer `[N/A]` in some fields."""
    return text.replace(".", "", 1).isdigit()


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def _prepared(launches: Sequence[Launch]) -> tuple[Callable[[], None], int, str]:
    """Function for one replay, its number of launches, and why it is no graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        _run(launches)
    torch.cuda.synchronize()
    try:
        graph = _captured(launches, stream)
        seconds = max(min(_replayed(graph.replay, 2)), 1e-6)
        repeats = max(1, min(int(TIMED_SECONDS / seconds), MOST_NODES // len(launches)))
        if repeats > 1:
            graph.reset()  # what its launches allocated would be there twice
            graph = _captured([*launches] * repeats, stream)
    except RuntimeError as refused:
        torch.cuda.synchronize()
        return lambda: _run(launches), len(launches), str(refused).partition("\n")[0]
    return graph.replay, repeats * len(launches), ""


def _warm(work: Callable[[], None]) -> None:
    """Run replays until the GPU has been busy for `WARM_SECONDS`."""
    seconds = max(min(_replayed(work, 2)), 1e-6)
    for _ in range(int(WARM_SECONDS / seconds)):
        work()


def _captured(launches: Sequence[Launch], stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        _run(launches)
    return graph


def _run(launches: Iterable[Launch]) -> None:
    for launch in launches:
        launch()


def _replayed(work: Callable[[], None], times: int) -> list[float]:
    work()
    torch.cuda.synchronize()
    pairs = []
    for _ in range(times):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        pairs.append((start, end))
    torch.cuda.synchronize()
    return [start.elapsed_time(end) / 1e3 for start, end in pairs]
