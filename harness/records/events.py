"""The events of `events.jsonl`, and their exit codes.

One file, although a long one, because it is the format of the records. Unknown fields are ignored
when events are read back, so that newer code reads older runs.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from kvproof.harness.errors import Exit, FailureKind
from kvproof.harness.records.base import Event
from kvproof.harness.records.base import Step as Step
from kvproof.harness.records.bench_events import (
    BenchGiven,
    BenchPair,
    GrowthPoint,
    SchedulerPoint,
    TierSample,
    TierSummary,
)
from kvproof.harness.records.campaign_events import UnitDone, UnitLost
from kvproof.harness.records.eval_events import EvalConcluded, EvalFigure, EvalStarted, EvalTable
from kvproof.harness.records.fault_events import FaultJudged, FaultsConcluded, FaultsStarted
from kvproof.harness.records.pairs import PairCoverage
from kvproof.harness.records.sweep_events import (
    Ceilings,
    Cell,
    Slower,
    SweepConcluded,
    SweepStarted,
)
from kvproof.harness.records.timeline import Timeline

Verdict: TypeAlias = Literal["pass", "inconclusive", "fail", "unsupported", "expected_failure"]
RunVerdict: TypeAlias = Literal[
    "pass", "fail", "inconclusive", "regression", "harness", "usage", "interrupted"
]


class TargetStarted(Event, tag="target_started", frozen=True, kw_only=True):
    """A target answered its first call."""

    target: str
    engine: str
    version: str
    profile: dict[str, Any]
    isolation: Literal["in_process", "worker", "server"]
    python: str = ""


class PropertyVerdict(Event, tag="property", frozen=True, kw_only=True):
    """The outcome of one property on one target."""

    target: str
    suite: str = "cache"
    property: str
    section: str
    """Letter of the rule section: B, K, H, ..."""
    rules: list[str]
    sentence: str
    verdict: Verdict
    reason: str = ""
    oracle: str = ""
    checks: int = 0
    """How often the property was evaluated."""
    situations: dict[str, int] = {}
    """Situations the property needs -> how often they occurred."""
    fingerprint: str = ""
    """Fingerprint of the failure, if any."""
    of_engine: bool = False
    """Whether its known failures are all of the engine itself, whatever connector runs."""


class BlockView(msgspec.Struct, frozen=True, kw_only=True):
    """One block at the moment of the failure."""

    block: int
    owners: list[str]
    writer: str
    """Request and positions that wrote it last, in words; empty if never written."""
    state: Literal["null", "free", "cached", "held"]
    suspect: bool = False


class Failure(Event, tag="failure", frozen=True, kw_only=True):
    """A property failed; the history is already minimal."""

    target: str
    property: str
    rules: list[str]
    oracle: str
    sentence: str
    """The failure in the field's words."""
    detail: str = ""
    """The slot and both fingerprints spelled out."""
    fingerprint: str
    op_log: str
    """Path relative to the run directory."""
    script: str
    """Source of the plain reproducer."""
    script_path: str
    history: list[Step]
    blocks: list[BlockView] = []
    tables: dict[str, list[int]] = {}
    """Request -> its block table at that moment."""
    timeline: Timeline | None = None
    """Timeline of a whole engine's steps."""
    seed: int | None = None
    intended: str = ""
    """Declaration that makes the behaviour a choice of the target; empty: there is none."""
    related: list[str] = []


class TargetFailed(Event, tag="target_failed", frozen=True, kw_only=True):
    """The target itself died, hung or talked nonsense: a verdict about the target."""

    target: str
    kind: FailureKind
    message: str
    log: str = ""
    """Tail of the worker's log."""
    history: list[Step] = []


class Exercised(Event, tag="exercised", frozen=True, kw_only=True):
    """Counts of a suite's work on a target."""

    target: str
    suite: str
    test_cases: int
    operations: dict[str, int]
    situations: dict[str, int]
    hit_blocks: dict[str, int] = {}
    """Histogram of hit lengths in blocks: bucket label -> admissions."""
    seconds: float
    engine_seconds: float | None = None
    """Those until the answers of the target; None: the suite asks no target."""
    missing: list[str] = []
    """Required situations that never occurred."""
    unseen: list[str] = []
    """Situations of the registry for servers that never occurred: a pass has not judged them."""
    pairs: PairCoverage | None = None
    """Pairs of features, where the suite has a table of factors."""


class TargetConcluded(Event, tag="target_concluded", frozen=True, kw_only=True):
    """Every suite of a target ran to its end: a run that is resumed does not repeat them."""

    target: str


class BenchSample(Event, tag="bench_sample", frozen=True, kw_only=True):
    """One repetition of one target on one workload."""

    target: str
    workload: str
    block_size: int
    num_blocks: int
    case: str
    """`no_eviction`, `eviction`, `python-lists`, ..."""
    groups: str = ""
    """Groups of layers as given to `bench`; empty: one of full attention."""
    repetition: int
    requests: int
    tokens: int
    hit_tokens: int
    cpu_seconds: float
    wall_seconds: float
    p50_us: float
    p99_us: float
    harness_share: float
    """Share of the CPU seconds that is the harness's own loop, measured with an empty cycle."""
    bytes_per_block: float | None = None
    cached_blocks: int | None = None
    lacks: str = ""
    """The parts of a life that this side leaves out; empty: it does everything."""


class BenchSummary(Event, tag="bench_summary", frozen=True, kw_only=True):
    """Medians over the repetitions of one target and case, and the ratio to the named peer."""

    target: str
    workload: str
    block_size: int
    num_blocks: int
    case: str
    groups: str = ""
    """As in the samples."""
    repetitions: int
    tokens_per_second: float
    low: float
    """10th percentile of tokens per second."""
    high: float
    p50_us: float
    p99_us: float
    hit_rate: float
    harness_share: float
    bytes_per_block: float | None = None
    index_bytes_per_block: float | None = None
    """`bytes_per_block` less the token ids themselves (4 bytes each)."""
    lacks: str = ""
    """As in the samples."""
    peer: str = ""
    peer_lacks: str = ""
    ratio: float | None = None
    """tokens_per_second over the peer's, median of the paired repetitions."""
    ratio_low: float | None = None
    ratio_high: float | None = None
    note: str = ""
    """Parts that the case leaves out, with the reason."""


class Optimum(Event, tag="optimum", frozen=True, kw_only=True):
    """Hit rate in blocks that any cache of `capacity` blocks could reach on the workload."""

    workload: str
    block_size: int
    capacity: int | None
    """Blocks; None: infinite."""
    references: int
    infinite: float
    lru: float | None = None
    belady: float | None = None
    infinite_tokens: float | None = None
    lru_tokens: float | None = None
    belady_tokens: float | None = None
    rule: Literal["engine_blocks", "hash_blocks"] = "engine_blocks"
    """Definition of blocks and hits: see `harness.bench.belady`."""
    lru_root_first_tokens: float | None = None
    """LRU that touches the blocks of a prompt from the first to the last; `hash_blocks` only."""


class Checked(Event, tag="checked", frozen=True, kw_only=True):
    """A workload ran once more, or a recording was judged, under the shadow memory."""

    target: str
    workload: str
    block_size: int
    num_blocks: int
    requests: int
    tokens: int
    slots_compared: int
    verdict: Literal["pass", "fail", "inconclusive"]
    message: str = ""
    """The failure, or the reason why it proves little."""


class Explained(Event, tag="explained", frozen=True, kw_only=True):
    """Explanation of the hit of one request in a checked workload; in tokens."""

    target: str
    workload: str
    block_size: int
    num_blocks: int
    request: str
    prompt: int
    hit: int
    optimum: int
    """Longest prefix that an earlier request computed and stored."""
    lost: dict[str, int]
    """Limit -> tokens lost to it; adds up to `optimum` less `hit`."""
    sentence: str


class Threshold(Event, tag="threshold", frozen=True, kw_only=True):
    """One line of the gate's thresholds."""

    name: str
    measured: float | None
    limit: float
    baseline: float | None = None
    verdict: Literal["pass", "fail", "inconclusive"]
    reason: str = ""


class Replayed(Event, tag="replayed", frozen=True, kw_only=True):
    """One op log of the corpus or of a recorded failure was run again."""

    target: str
    path: str
    outcome: Literal["PASS", "FIXED", "FAILED", "ERROR"]
    """FIXED: it passes on the engine on which it had failed."""
    message: str = ""
    expected: str = ""
    known: str = ""
    """The mechanism of the expected failure that it is."""


class Skipped(Event, tag="skipped", frozen=True, kw_only=True):
    """A part did not run; `command` installs the missing packages."""

    part: str
    reason: str
    command: str = ""


class HarnessFault(Event, tag="harness_fault", frozen=True, kw_only=True):
    """kvproof itself failed; never a verdict about the target."""

    where: str
    message: str
    traceback: str = ""


class RunIncomplete(Event, tag="run_incomplete", frozen=True, kw_only=True):
    """A merged run was killed or interrupted: it has not tested everything, which is no pass."""

    run: str
    """Its directory."""
    verb: str
    reason: str


class Ended(Event, tag="ended", frozen=True, kw_only=True):
    """The run closed. A run without this event was killed."""

    verdict: RunVerdict
    exit_code: int
    sentence: str
    seconds: float


AnyEvent: TypeAlias = (
    TargetStarted
    | PropertyVerdict
    | Failure
    | TargetFailed
    | Exercised
    | TargetConcluded
    | BenchSample
    | BenchSummary
    | BenchPair
    | BenchGiven
    | Optimum
    | GrowthPoint
    | TierSample
    | TierSummary
    | SchedulerPoint
    | Checked
    | Explained
    | Threshold
    | Replayed
    | Skipped
    | HarnessFault
    | RunIncomplete
    | Ended
    | SweepStarted
    | Ceilings
    | Cell
    | Slower
    | SweepConcluded
    | FaultsStarted
    | FaultJudged
    | FaultsConcluded
    | UnitDone
    | UnitLost
    | EvalStarted
    | EvalFigure
    | EvalTable
    | EvalConcluded
)

_VERDICT_CODES = {
    "fail": Exit.FAILURE,
    "FAILED": Exit.FAILURE,
    "inconclusive": Exit.INCONCLUSIVE,
    "ERROR": Exit.HARNESS,
}


def exit_code(event: AnyEvent) -> Exit:
    """Return the code that an event calls for; a run ends with the worst of them."""
    if isinstance(event, TargetFailed):
        return Exit.FAILURE
    if isinstance(event, HarnessFault):
        return Exit.HARNESS
    if isinstance(event, RunIncomplete):
        return Exit.INCONCLUSIVE
    if isinstance(event, Slower):
        return Exit.REGRESSION
    if isinstance(event, Threshold) and event.verdict == "fail":
        return Exit.REGRESSION
    verdict = event.outcome if isinstance(event, Replayed) else getattr(event, "verdict", "")
    return Exit.PASS if isinstance(event, Ended) else _VERDICT_CODES.get(verdict, Exit.PASS)
