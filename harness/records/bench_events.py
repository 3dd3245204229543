"""Events of benchmarks besides samples and summaries of cycles."""

from __future__ import annotations

from kvproof.harness.records.base import Event


class BenchGiven(Event, tag="bench_given", frozen=True, kw_only=True):
    """The work of one side of a bench: by which calls, on which input."""

    target: str
    version: str
    """Version of the engine."""
    case: str
    """The first case that was measured with it."""
    parts: dict[str, str]
    """Part of a life (`contract.target.PARTS`) -> calls and input."""
    lacks: str = ""
    """The parts of a life that it leaves out; empty: it does everything."""


class BenchPair(Event, tag="bench_pair", frozen=True, kw_only=True):
    """Tokens per second of one side over those of another, paired by repetition."""

    target: str
    peer: str
    workload: str
    block_size: int
    num_blocks: int
    case: str
    groups: str = ""
    repetitions: int
    ratio: float
    low: float
    """Lower end of the 95 % bootstrap interval."""
    high: float
    peer_lacks: str = ""
    """See BenchGiven: with less to do on the other side the ratio is a lower bound."""


class GrowthPoint(Event, tag="growth", frozen=True, kw_only=True):
    """Cost of one cycle at a given number of cached blocks."""

    target: str
    block_size: int
    cached_blocks: int
    nanoseconds_per_token: float
    low: float
    high: float


TIER_COPIES = ("memcpy", "copy_in", "copy_out")
"""Operations of tiers that are plain copies: the yardsticks of the others."""


class TierSample(Event, tag="tier_sample", frozen=True, kw_only=True):
    """One turn of one operation on a store that several engines share."""

    target: str
    operation: str
    """`memcpy` is a plain copy of the same objects by the same engines in the same turn, `copy_in`
    one to memory that processes can share, `copy_out` one from there."""
    object_bytes: int
    clients: int
    repetition: int
    objects: int
    """Objects of all engines together."""
    cpu_seconds: float
    """CPU time of all engines and the server."""
    wall_seconds: float
    """Wall time of the slowest engine."""


class TierSummary(Event, tag="tier_summary", frozen=True, kw_only=True):
    """Medians of an operation over the turns, its share of memcpy's speed, its ratio."""

    target: str
    operation: str
    object_bytes: int
    clients: int
    repetitions: int
    objects_per_second: float
    """Objects for each second of CPU time of all engines and the server."""
    low: float
    """10th percentile."""
    high: float
    wall_objects_per_second: float
    copies: int | None = None
    """Copies of each byte, the kernel's included, by reading the code; None: nothing is copied."""
    of_memcpy: float | None = None
    """CPU time of the plain copy over the operation's, paired by turn; None: nothing is copied."""
    of_memcpy_low: float | None = None
    of_memcpy_high: float | None = None
    of_shared_memcpy: float | None = None
    """Rate over that of a plain copy to (store) or from (retrieve) shared memory."""
    of_shared_memcpy_low: float | None = None
    of_shared_memcpy_high: float | None = None
    peer: str = ""
    ratio: float | None = None
    """objects_per_second over the peer's, median of the paired turns."""
    ratio_low: float | None = None
    ratio_high: float | None = None


class SchedulerPoint(Event, tag="scheduler_point", frozen=True, kw_only=True):
    """One engine's scheduler around a model of fixed step time; CPU time of the control plane."""

    target: str
    requests: int
    """Under way at the same time."""
    prompt_tokens: int
    block_size: int
    num_blocks: int
    step_seconds: float
    """Simulated time of the model in one step."""
    steps: int
    finished: int
    """Requests that ended while it was measured."""
    simulated_seconds: float
    """Steps of the model and of the control plane."""
    share: float
    """Share of the control plane in a step of both, one after the other."""
    p50_us: float
    """Median time of one step: arrivals, decisions, results."""
    p50_low_us: float | None = None
    """The least median step of all turns; the figures are those of the turn in the middle."""
    p50_high_us: float | None = None
    repetitions: int = 1
    """Turns."""
    p99_us: float
    p9999_us: float | None = None
    """None: too few steps."""
    longest_us: float
    longest_call_us: float | None = None
    """The longest arrival, decision or result alone, without the collector's pauses."""
    collector_us: float | None = None
    """The longest pause by the garbage collector in one step; it lies in the other figures."""
    collector_share: float | None = None
    """Share of the garbage collector in the control plane's time."""
    p9999_without_us: float | None = None
    """p99.99 of a step without the collector's pauses."""
    cut: str = ""
    """Where the measurement ended before the cell had enough."""
    drift: float
    """Mean of the last tenth of the steps over that of the first."""
    bytes_per_waiting: float
    """Kept for a request that waits, besides the caller's own prompt."""
