"""Summary of a run, computed from its records alone."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from kvproof.eval.run.config import EvalConfig, check_config
from kvproof.eval.run.files import read_options
from kvproof.eval.run.records import (
    Conditions,
    EvalRun,
    Phase,
    SampleRecord,
    Scored,
    ServerDied,
    models_of,
)
from kvproof.eval.verdict.compare import Comparison, check_comparable, compare
from kvproof.eval.verdict.evaluated import EXITS, Verdict, worst_verdict
from kvproof.eval.verdict.measured import Measured, measured, renamed
from kvproof.eval.verdict.power import power
from kvproof.eval.verdict.score import Score, score
from kvproof.harness.errors import Exit, UsageError


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it stands, complete or not."""

    benchmark: str
    conditions: Conditions
    scores: tuple[Score, ...]
    comparison: Comparison
    deaths: tuple[ServerDied, ...]
    """Servers that ended and whose samples are still missing."""
    revived: tuple[str, ...] = ()
    """Configurations whose server ended, and that have all samples now."""
    scored: tuple[Scored, ...] = ()
    """Scores of OpenCompass, if it was the client."""
    power: tuple[str, ...] = ()
    """Smallest losses that the hits of the run show."""
    measured: tuple[Measured, ...] = ()
    """Servers of the configurations, in their order."""

    @property
    def exit(self) -> Exit:
        """Exit code of the run."""
        return EXITS[self.verdict]

    @property
    def verdict(self) -> Verdict:
        """The verdict as a word."""
        rows = self.comparison.rows
        return worst_verdict((r.verdict for r in rows), least="fail" if self.deaths else "pass")


def restored(run: EvalRun) -> tuple[EvalConfig, Conditions]:
    """Return the settings of a run. Raises UsageError if its manifest lacks them."""
    config = read_options(run.manifest, "evaluation", EvalConfig)
    found = read_options(run.manifest, "conditions", Conditions)
    check_config(str(run.directory), config)
    return config, found


def summarise(run: EvalRun) -> Summary:
    """Score and compare all records of a run."""
    config, found = restored(run)
    samples = run.samples
    deaths, revived = _deaths(run, config, found, samples)
    compared = compare(config, samples, found.data.samples)
    return Summary(
        benchmark=str(run.manifest.config.get("benchmark", "longbench_v2")),
        conditions=found,
        scores=_scores(config, samples),
        comparison=compared,
        power=_power(config, compared),
        deaths=deaths,
        revived=revived,
        scored=_last([each for each in run.records if isinstance(each, Scored)]),
        measured=measured(config, run.records),
    )


def _power(config: EvalConfig, compared: Comparison) -> tuple[str, ...]:
    """Describe the smallest losses that the row with the fewest hits shows."""
    rows = [e for e in compared.rows if not e.control and e.phase != "cold"]
    hits = min((row.hits for row in rows), default=0)
    return tuple(power(config, hits, "hit")) if hits else ("no hit, so that nothing can show",)


def _last(found: list[Scored]) -> tuple[Scored, ...]:
    """A run that was killed while it scored has scored twice."""
    return tuple({(e.configuration, e.repeat, e.data): e for e in found}.values())


def _scores(config: EvalConfig, samples: list[SampleRecord]) -> tuple[Score, ...]:
    by: dict[tuple[str, Phase], list[SampleRecord]] = {}
    for each in samples:
        by.setdefault((each.configuration, each.phase), []).append(each)
    return tuple(
        score(
            by[one.name, phase],
            min_cached=config.judge.min_cached,
            concurrency=config.protocol.concurrency,
        )
        for one in config.configuration
        for phase in config.protocol.phases
        if (one.name, phase) in by
    )


def _deaths(
    run: EvalRun, config: EvalConfig, found: Conditions, samples: list[SampleRecord]
) -> tuple[tuple[ServerDied, ...], tuple[str, ...]]:
    """Return those that cost samples, and the configurations that have them all since."""
    whole = found.data.samples * len(config.protocol.phases) * config.protocol.repeats
    last = {each.configuration: each for each in run.records if isinstance(each, ServerDied)}
    lost = {
        name: death
        for name, death in last.items()
        if sum(each.configuration == name for each in samples) < whole
    }
    return tuple(lost.values()), tuple(name for name in last if name not in lost)


def across(before: EvalRun, after: EvalRun) -> Summary:
    """Compare all configurations of a run with the first one of an earlier run.

    The earlier run's control pair measures the noise. Raises UsageError, with both values, if the
    runs differ in conditions.
    """
    config, found = restored(before)
    other, asked = restored(after)
    check_comparable(found, asked)
    if not found.model and not (found.weights and asked.weights):
        _check_models(models_of("", before.records), models_of("", after.records))
    base = (config.baseline, config.control)
    kept = {each.name for each in base}
    names = {each.name: f"{after.directory.name} {each.name}" for each in other.configuration}
    news = [replace(each, name=names[each.name], control=False) for each in other.configuration]
    joined = replace(config, configuration=(*base, *news))
    samples = [each for each in before.samples if each.configuration in kept]
    samples += [
        replace(each, configuration=names[each.configuration])
        for each in after.samples
        if each.configuration in names
    ]
    servers = [e for e in measured(config, before.records) if e.configuration in kept]
    compared = compare(joined, samples, found.data.samples)
    servers += renamed(measured(other, after.records), names)
    return Summary(
        benchmark=str(after.manifest.config.get("benchmark", "longbench_v2")),
        conditions=found,
        scores=_scores(joined, samples),
        comparison=compared,
        power=_power(joined, compared),
        deaths=(),
        measured=tuple(servers),
    )


def _check_models(before: set[str], after: set[str]) -> None:
    """Without a model name in requests, the model is the one that the servers reported."""
    if before and after and before != after:
        raise UsageError(
            f"the runs asked different models: {sorted(before)} and {sorted(after)}",
            "compare runs of one model, served under one name",
        )
