"""Benchmarks cache managers side by side: speed, memory, hit rate, growth, and a checked pass.

Every number comes from a job inside the target's worker (`bench.job`), so all sides are measured
alike. Repetitions are interleaved (A B A B ...), so that a passing disturbance of the machine
hits all sides; ratios are paired by repetition. Raw samples are events, summaries too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kvproof.harness.bench.cases import (
    APART,
    EVICTING,
    INDEX,
    SCHEDULER,
    TIERS,
    BenchOptions,
    Case,
    check_options,
    engine_optimum,
    eviction_pool,
    hash_optimum,
    plan,
    roomy_pool,
)
from kvproof.harness.bench.groups import groups_of, widths
from kvproof.harness.bench.lookup_job import MATCHED
from kvproof.harness.bench.schedulers import measure_schedulers
from kvproof.harness.bench.sides import Runner, isolated
from kvproof.harness.bench.summaries import pairs, summarize
from kvproof.harness.bench.tiers import measure_tiers
from kvproof.harness.bench.workloads import Workload, load_workload
from kvproof.harness.errors import TargetDied
from kvproof.harness.records.bench_events import (
    BenchGiven,
    GrowthPoint,
    SchedulerPoint,
    TierSample,
)
from kvproof.harness.records.events import (
    AnyEvent,
    BenchSample,
    Checked,
    Explained,
    Skipped,
    TargetFailed,
)

REFERENCE = "reference"
"""The engine that takes lists as well as buffers, and keeps the token ids themselves."""

EXPLAINED = {
    "kvproof.harness.adapters.reference.target:make_target": (
        "kvproof.harness.bench.explain_job:explained_target"
    )
}
"""Factory -> factory of the same target with each hit explained."""

_MATCH = "lookup_job:run"
_TOKEN_BYTES = 4
_START, _PER_TOKEN, _PER_BLOCK = 120.0, 4e-6, 4e-5
"""Seconds after which a job counts as hung: about ten times the time of the slowest engine."""
_VARIANTS = {"python-lists": "lists", "match": "buffer"}
"""Case -> prompt type of the reference, where it is not its native one."""
_TRACED = 20
"""Memory and checked passes may take that many times as long per token."""
_SAMPLE_FIELDS = (
    "requests", "tokens", "hit_tokens", "cpu_seconds", "wall_seconds", "p50_us", "p99_us",
    "harness_share", "cached_blocks",
)  # fmt: skip  # one list of names
_CHECKED_FIELDS = ("requests", "tokens", "slots_compared", "verdict", "message")


def run_bench(
    runners: Sequence[Runner],
    workload_spec: str,
    *,
    options: BenchOptions,
    write: Callable[[AnyEvent], None],
    progress: Callable[[str], None],
    earlier: Sequence[AnyEvent] = (),
) -> None:
    """Measure all targets on a workload and write the events.

    `earlier` are the events of an interrupted run of the same bench: cells with figures are not
    measured again. A target that dies or gives invalid answers is recorded as failed and left out
    of that case; one that does not start or answer, of all. Raises UsageError for an unknown
    workload, case or peer.
    """
    check_options(options, [runner.name for runner in runners])
    progress(f"bench: loading {workload_spec}")
    workload = load_workload(workload_spec)
    for note in workload.notes:
        progress(f"bench: {note}")
    bench = _Bench(workload, options, write, progress, earlier)
    with isolated(runners) as separate:
        bench.start(separate)
        if TIERS in options.cases:
            bench.tiers()
        if SCHEDULER in options.cases:
            bench.schedulers()
        if bench.cases:
            for row in hash_optimum(workload):
                write(row)
            for block_size in options.block_sizes:
                bench.measure(block_size)
        for block_size in options.block_sizes:
            bench.growth(block_size)


@dataclass
class _Bench:
    workload: Workload
    options: BenchOptions
    write: Callable[[AnyEvent], None]
    progress: Callable[[str], None]
    earlier: Sequence[AnyEvent] = ()
    """Events from before an interruption."""
    runners: list[Runner] = field(default_factory=list)
    """Those that can be measured."""
    died: set[tuple[str, str]] = field(default_factory=set)
    """(target, case), where a target died in it."""
    skipped: set[str] = field(default_factory=set)
    given: set[tuple[str, str]] = field(default_factory=set)
    reference: str = ""
    peer: str = ""

    def start(self, runners: Sequence[Runner]) -> None:
        """Ask every target for its profile, which starts it."""
        for runner in runners:
            self.progress(f"bench: starting {runner.name}")
            try:
                engine = runner.profile.engine
            except TargetDied as error:
                self._lost(runner, error, "its start")
                continue
            self.runners.append(runner)
            if engine == REFERENCE:
                self.reference = runner.name
        others = [r.name for r in self.runners if r.name != self.reference]
        self.peer = self.options.peer or next(iter(others), "")

    @property
    def cases(self) -> tuple[str, ...]:
        """Those on the workload."""
        return tuple(case for case in self.options.cases if case not in APART)

    def schedulers(self) -> None:
        """Engines' own schedulers around a model of fixed step time."""
        points = [event for event in self.earlier if isinstance(event, SchedulerPoint)]
        measure_schedulers(
            self.runners,
            write=self.write,
            progress=self.progress,
            lost=partial(self._lost, case=SCHEDULER),
            done={(each.target, each.requests, each.prompt_tokens) for each in points},
        )

    def tiers(self) -> None:
        """Shared stores of objects, side by side."""
        measure_tiers(
            self.runners,
            repetitions=self.options.repetitions,
            peer=self.options.peer,
            reference=self.reference,
            write=self.write,
            progress=self.progress,
            lost=partial(self._lost, case=TIERS),
            earlier=[event for event in self.earlier if isinstance(event, TierSample)],
        )

    def measure(self, block_size: int) -> None:
        """Everything at one block size."""
        self.progress(f"bench: block {block_size}, optimum")
        workload, options = self.workload, self.options
        cases = plan(
            workload,
            block_size,
            cases=self.cases,
            max_blocks=options.max_blocks,
            groups=options.groups,
        )
        for name in set(self.cases) - {case.name for case in cases}:
            self._skip_case(name, block_size)
        pools = [case.num_blocks for case in cases if case.name != "match"]
        for row in engine_optimum(workload, block_size, pools, options.groups):
            self.write(row)
        samples = self._repeat(cases)
        memory = self._memory(block_size) if "no_eviction" in options.cases else {}
        for case in cases:
            self._summarize(case, samples, memory if case.name == "no_eviction" else {})
        self._checked(block_size)

    def growth(self, block_size: int) -> None:
        """Cost per token with growing numbers of cached blocks."""
        sizes = list(self.options.growth_sizes)
        points = [each for each in self.earlier if isinstance(each, GrowthPoint)]
        done = {each.target for each in points if each.block_size == block_size}
        for runner in list(self.runners) if sizes else []:
            if runner.name in done:
                continue
            self.progress(f"bench: block {block_size}, growth to {max(sizes):,}: {runner.name}")
            work = {"tokens": 4 * max(sizes) * block_size, "blocks": 4 * max(sizes)}
            result = self._ask(
                runner,
                "growth",
                "job:growth",
                work,
                block_size=block_size,
                sizes=sizes,
                groups=self.options.groups,
            )
            for point in result["points"] if result else []:
                self.write(GrowthPoint(target=runner.name, block_size=block_size, **point))

    def _skip(self, part: str, reason: str) -> None:
        """Write it once, not in each repetition."""
        if part not in self.skipped:
            self.skipped.add(part)
            self.write(Skipped(part=part, reason=reason))

    def _skip_case(self, name: str, block_size: int) -> None:
        pool = eviction_pool(self.workload, block_size, self.options.groups)
        reason = f"a pool of {pool:,} blocks holds all blocks of the workload"
        if name not in EVICTING:
            reason = f"not one request fits in {self.options.max_blocks:,} blocks"
        self.write(Skipped(part=f"bench case {name} at block size {block_size}", reason=reason))

    def _repeat(self, cases: list[Case]) -> list[BenchSample]:
        samples = []
        done = {_turn(e): e for e in self.earlier if isinstance(e, BenchSample)}
        for repetition in range(self.options.repetitions):
            for case in cases:
                for runner in list(self.runners):
                    lists = case.name == "python-lists" and runner.name != self.reference
                    if lists or (runner.name, case.name) in self.died:
                        continue
                    turn = (runner.name, case.block_size, case.name, repetition)
                    if turn in done:
                        samples.append(done[turn])
                    elif sample := self._sample(runner, case, repetition):
                        self.write(sample)
                        samples.append(sample)
        return samples

    def _sample(self, runner: Runner, case: Case, repetition: int) -> BenchSample | None:
        turn = f"{repetition + 1} of {self.options.repetitions}"
        self.progress(f"bench: block {case.block_size}, {case.name} {turn}: {runner.name}")
        result = self._ask(
            runner,
            case.name,
            _MATCH if case.name == "match" else "job:run",
            {"tokens": case.tokens, "blocks": case.num_blocks},
            workload=self.workload.spec,
            block_size=case.block_size,
            num_blocks=case.num_blocks,
            requests=case.requests,
            groups=self.options.groups,
            states=case.states,
            **self._variant(runner, case),
        )
        if result is None:
            return None
        self._give(runner, case.name, result)
        return BenchSample(
            target=runner.name,
            workload=MATCHED if case.name == "match" else self.workload.name,
            block_size=case.block_size,
            num_blocks=case.num_blocks,
            case=case.name,
            groups=self.options.groups,
            repetition=repetition,
            lacks=result.get("lacks", ""),
            **{name: result[name] for name in _SAMPLE_FIELDS},
        )

    def _give(self, runner: Runner, case: str, result: dict[str, Any]) -> None:
        """Record the work of a side once, and again where it does less."""
        parts, lacks = result.get("given", {}), result.get("lacks", "")
        if parts and (runner.name, lacks) not in self.given:
            self.given.add((runner.name, lacks))
            version = runner.profile.version
            self.write(
                BenchGiven(target=runner.name, version=version, case=case, parts=parts, lacks=lacks)
            )

    def _variant(self, runner: Runner, case: Case) -> dict[str, Any]:
        if runner.name == self.reference:
            return {"variant": _VARIANTS.get(case.name, "")}
        return {"variant": "index" if case.name in INDEX else ""}

    def _memory(self, block_size: int) -> dict[str, float]:
        requests = max(1, int((self.workload.lengths.cumsum() <= self.options.memory_tokens).sum()))
        head = self.workload.head(requests)
        pool = roomy_pool(head, block_size, self.options.groups)
        states = widths(groups_of(self.options.groups, block_size)).states(requests + 1)
        found = {}
        for runner in list(self.runners):
            self.progress(f"bench: block {block_size}, memory: {runner.name}")
            result = self._ask(
                runner,
                "memory",
                "job:memory",
                {"tokens": _TRACED * head.tokens, "blocks": _TRACED * pool},
                workload=head.spec,
                block_size=block_size,
                num_blocks=pool,
                requests=requests,
                groups=self.options.groups,
                states=states,
            )
            if result:
                found[runner.name] = result["bytes_per_block"]
        return found

    def _summarize(self, case: Case, samples: list[BenchSample], memory: dict[str, float]) -> None:
        """Ratios of `python-lists` are against `no_eviction` of the others: their native type."""
        sides = list(dict.fromkeys(sample.target for sample in samples))
        of_others = "no_eviction" if case.name == "python-lists" else case.name
        measured = {name: _of(samples, name, of_others) for name in sides}
        peers = measured.get(self.peer, [])
        for name in sides:
            if not (own := _of(samples, name, case.name)):
                continue
            size = memory.get(name)
            plain = size and not self.options.groups
            index = size - _TOKEN_BYTES * case.block_size if size and plain else None
            summary = summarize(
                own,
                [] if name == self.peer else peers,
                note=case.note,
                bytes_per_block=size,
                index_bytes_per_block=index if name == self.reference else None,
            )
            self.write(summary)
            if name == self.reference:
                others = [found for side, found in measured.items() if found and side != name]
                for pair in pairs(own, others):
                    self.write(pair)

    def _checked(self, block_size: int) -> None:
        """The workload once more, with the shadow memory, in the pool that evicts."""
        if not self.options.checked_tokens:
            return
        if self.options.groups:
            reason = "it runs with one group only; suites judge groups (kvproof run --level full)"
            self.write(Skipped(part=f"checked pass at block size {block_size}", reason=reason))
            return
        for runner in list(self.runners):
            if why := runner.profile.unsupported.get("blocks"):
                part = f"checked pass of {runner.name} at block size {block_size}"
                self.write(Skipped(part=part, reason=why))
            else:
                self.progress(f"bench: block {block_size}, checked pass: {runner.name}")
                self._check(runner, block_size, eviction_pool(self.workload, block_size))

    def _check(self, runner: Runner, block_size: int, pool: int) -> None:
        result = self._ask(
            runner,
            "the checked pass",
            "checked_job:run",
            {"tokens": _TRACED * self.options.checked_tokens, "blocks": pool},
            workload=self.workload.spec,
            block_size=block_size,
            num_blocks=pool,
            max_tokens=self.options.checked_tokens,
            explained=EXPLAINED.get(runner.factory, ""),
        )
        if not result:
            return
        checked = Checked(
            target=runner.name,
            workload=self.workload.name,
            block_size=block_size,
            num_blocks=pool,
            **{name: result[name] for name in _CHECKED_FIELDS},
        )
        self.write(checked)
        self._explained(checked, result.get("explained", ()))

    def _explained(self, checked: Checked, explanations: Sequence[dict[str, Any]]) -> None:
        """Limits of each hit in a checked pass, of targets that report them."""
        for explanation in explanations:
            self.write(
                Explained(
                    target=checked.target,
                    workload=checked.workload,
                    block_size=checked.block_size,
                    num_blocks=checked.num_blocks,
                    **explanation,
                )
            )

    def _ask(
        self, runner: Runner, case: str, job: str, work: dict[str, int], **arguments: Any
    ) -> dict[str, Any] | None:
        timeout = _START + work["tokens"] * _PER_TOKEN + work["blocks"] * _PER_BLOCK
        arguments["factory"] = runner.factory
        try:
            result = runner.run_job(f"kvproof.harness.bench.{job}", arguments, timeout=timeout)
        except TargetDied as error:
            self._lost(runner, error, case)
            return None
        if why := result.get("unsupported"):
            index = arguments.get("variant") == "index"
            alone = "match " if job == _MATCH else "index " if index else ""
            if not alone:
                self.runners.remove(runner)
            self._skip(f"bench {alone}of {runner.name}", why)
            return None
        if why := result.get("problem"):
            self._lost(runner, TargetDied("garbage", why), case)
            return None
        return result

    def _lost(self, runner: Runner, error: TargetDied, case: str) -> None:
        """Record a death in a case; the target goes on in others, unless it answers no more."""
        self.died.add((runner.name, case))
        if runner in self.runners and error.kind in ("start", "hang"):
            self.runners.remove(runner)
        why = f"in {case.replace('_', ' ')}: {error}"
        self.write(TargetFailed(target=runner.name, kind=error.kind, message=why, log=error.log))


def _turn(sample: BenchSample) -> tuple[str, int, str, int]:
    return sample.target, sample.block_size, sample.case, sample.repetition


def _of(samples: list[BenchSample], target: str, case: str) -> list[BenchSample]:
    return [s for s in samples if (s.target, s.case) == (target, case)]
