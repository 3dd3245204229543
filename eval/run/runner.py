"""A whole run: every configuration on its own server, in order; resumable at any sample."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from kvproof.eval.benchmark.data import DataFacts, DataSet
from kvproof.eval.benchmark.extract import RULE
from kvproof.eval.benchmark.prompts import PromptSet, own_prompts
from kvproof.eval.benchmark.truncate import Truncation
from kvproof.eval.run.config import Configuration, EvalConfig
from kvproof.eval.run.generator import VERSION, GeneratorOptions, write_generated
from kvproof.eval.run.protocol import (
    ROTATED,
    Material,
    Questions,
    RequestLoop,
    request_fields,
)
from kvproof.eval.run.records import (
    Conditions,
    Done,
    Finished,
    Record,
    SampleRecord,
    Scored,
    ServerDied,
    ServerRecord,
    asked_as,
    done,
    finished,
    models_of,
    samples_of,
)
from kvproof.eval.run.server import Serving, key_of, serving
from kvproof.eval.run.weights import weights_digest
from kvproof.harness.errors import UsageError
from kvproof.harness.http.chat_client import ChatClient
from kvproof.harness.isolation.supervised import Died

Progress = Callable[[str, int, int], None]
"""Activity, for example a configuration, its records so far, and their total."""


class ConfigurationRun(NamedTuple):
    """One repeat of one configuration, on a ready server."""

    config: EvalConfig
    configuration: Configuration
    repeat: int
    server: Serving
    model: str
    material: Material
    done: set[Done]
    earlier: Sequence[SampleRecord]
    """Samples completed before."""
    write: Callable[[SampleRecord | Scored], None]


Runner = Callable[[ConfigurationRun], int]
"""Sends all missing requests and records each; returns the number of prompts that it repeated to
warm a cache after a restart."""


class Sources(NamedTuple):
    """Source of the questions; generated samples and own prompts by default."""

    data: Path | None = None
    shared: Path | None = None
    skip_bad_rows: bool = False
    prompts: PromptSet | None = None


@contextmanager
def material(config: EvalConfig, sources: Sources, own: Path) -> Iterator[Questions]:
    """Open data and prompts; generated samples go to the folder `own`. Raises UsageError."""
    data, shared, name = sources.data, sources.shared, ""
    if data is None:
        if shared is not None:
            raise UsageError(
                f"--shared {str(shared)!r} without --data",
                "its questions are about those documents",
            )
        chosen = msgspec.structs.asdict(config.synthetic)
        data, shared = write_generated(own, GeneratorOptions(**chosen))
        name = f"synthetic data, generator {VERSION}"
    prompts = sources.prompts or own_prompts()
    truncation = Truncation(config.protocol.tokenizer, config.protocol.max_prompt_tokens)
    skip = sources.skip_bad_rows
    with DataSet(data, sha256=config.data_sha256, own=name, skip_bad_rows=skip) as first:
        if shared is None:
            yield Questions(first, prompts, truncation)
            return
        with DataSet(shared, own=name, skip_bad_rows=skip) as second:
            _check_shared(first, second)
            yield Questions(first, prompts, truncation, second)


def _check_shared(first: DataSet, second: DataSet) -> None:
    bad = {**first.left_out, **{row: f"--shared: {why}" for row, why in second.left_out.items()}}
    first.leave_out(bad)
    second.leave_out(bad)
    if len(first.cards) != len(second.cards):
        raise UsageError(
            f"{len(second.cards)} further questions for {len(first.cards)} samples", _ALIKE
        )
    for number in range(len(first.cards)):
        if first.sample(number).context != second.sample(number).context:
            raise UsageError(f"row {number} of both files is about two documents", _ALIKE)


_ALIKE = "--shared holds one more question for every row of --data, about the same document"


def conditions(
    config: EvalConfig, found: Questions, *, runner: str = "kvproof", extraction: str = RULE
) -> Conditions:
    """Return the conditions that a comparable run must share."""
    made = conditions_of(
        config,
        found.data.facts,
        shared=found.shared.facts.sha256 if found.shared else ROTATED,
        prompt=found.prompts.name,
        prompt_sha256=found.prompts.sha256,
        truncation=found.truncation.rule,
        extraction=extraction,
        runner=runner,
    )
    thought = config.protocol.thought_tokens if found.prompts.second else 0
    return replace(made, thought_tokens=thought)


def conditions_of(
    config: EvalConfig,
    data: DataFacts,
    *,
    shared: str,
    prompt: str,
    prompt_sha256: str,
    truncation: str,
    extraction: str,
    runner: str,
) -> Conditions:
    """Return the conditions of any data."""
    protocol = config.protocol
    return Conditions(
        data=data,
        model=config.model,
        weights=weights_digest(config.model),
        temperature=protocol.temperature,
        max_tokens=protocol.max_tokens,
        sampling=protocol.sampling,
        phases=protocol.phases,
        order=protocol.order,
        concurrency=protocol.concurrency,
        repeats=protocol.repeats,
        shared=shared,
        prompt=prompt,
        prompt_sha256=prompt_sha256,
        truncation=truncation,
        extraction=extraction,
        runner=runner,
    )


class RunSink(NamedTuple):
    """Output of a run."""

    write: Callable[[msgspec.Struct], None]
    progress: Progress
    logs: Path
    """Folder for the servers' output."""


def evaluate(
    config: EvalConfig,
    found: Material,
    outlet: RunSink,
    *,
    earlier: Sequence[Record] = (),
    runner: Runner | None = None,
) -> None:
    """Run every configuration; requests with a record in `earlier` are skipped.

    The death of a started server is recorded; the next configuration follows. Raises UsageError if
    a running server does not answer, or serves another model than the first.
    """
    whole, models = finished(earlier), models_of(config.model, earlier)
    for one in found.order(config):
        try:
            for repeat in range(config.protocol.repeats):
                if (one.name, repeat) not in whole:
                    plan = _Plan(config, one, repeat, found, earlier, runner or direct)
                    _turn(plan, outlet, models)
        except Died as death:
            outlet.write(ServerDied(configuration=one.name, message=str(death), log=death.log))


class _Plan(NamedTuple):
    config: EvalConfig
    one: Configuration
    repeat: int
    found: Material
    earlier: Sequence[Record]
    runner: Runner


def _turn(plan: _Plan, outlet: RunSink, models: set[str]) -> None:
    stages = plan.found.begin(plan.one.name, plan.config.protocol)
    total = sum(len(job) for stage in stages for job in stage.jobs)
    own = (plan.one.name, plan.repeat)
    have = [e for e in samples_of(plan.earlier) if (e.configuration, e.repeat) == own]
    begun = time.monotonic()
    outlet.progress(f"{plan.one.name}: waiting for the server", len(have), total)
    log = outlet.logs / f"{plan.one.name.replace(' ', '_')}-{plan.repeat}.log"
    with serving(plan.config, plan.one, log) as server:
        record = server_record(plan.one.name, server, plan.repeat)
        model = _model(plan, record, models)
        outlet.write(record)
        counted = _Counted(outlet, plan.one.name, len(have), total)
        turn = ConfigurationRun(
            _company(plan), plan.one, plan.repeat, server, model, plan.found, done(have),
            have, counted.write,
        )  # fmt: skip
        warmed = plan.runner(turn)
    seconds = round(time.monotonic() - begun, 3)
    name, repeat = plan.one.name, plan.repeat
    outlet.write(Finished(configuration=name, repeat=repeat, seconds=seconds, warmed=warmed))


def _company(plan: _Plan) -> EvalConfig:
    """Return the settings with the control's own concurrency."""
    if not plan.one.control:
        return plan.config
    protocol = plan.config.protocol
    return replace(
        plan.config, protocol=replace(protocol, concurrency=protocol.control_concurrency)
    )


def server_record(configuration: str, server: Serving, repeat: int = 0) -> ServerRecord:
    """Describe a server that is ready."""
    return ServerRecord(
        configuration=configuration,
        repeat=repeat,
        url=server.url,
        models=server.models,
        command=server.command,
        fresh=server.fresh,
        engine=server.engine,
        version=server.version,
    )


class _Counted:
    """Writes samples and reports progress."""

    def __init__(self, outlet: RunSink, name: str, have: int, total: int) -> None:
        self._outlet, self._name, self._have, self._total = outlet, name, have, total

    def write(self, record: SampleRecord | Scored) -> None:
        self._outlet.write(record)
        self._have += isinstance(record, SampleRecord)
        self._outlet.progress(self._name, self._have, self._total)


def _model(plan: _Plan, server: ServerRecord, models: set[str]) -> str:
    """Model name of requests; answers of different models are never compared."""
    model = asked_as(plan.config.model, server)
    models.add(model)
    if len(models) > 1:
        raise UsageError(
            f"configuration {plan.one.name!r} serves {model!r}, others {models - {model}}",
            "serve one model under one name, or give its name with --model",
        )
    return model


def direct(turn: ConfigurationRun) -> int:
    """Send requests with kvproof's own client."""
    protocol = turn.config.protocol
    client = ChatClient(
        turn.server.url,
        key=key_of(turn.config.server_of(turn.configuration)),
        timeout=protocol.timeout,
        retries=protocol.retries,
        stream=protocol.stream,
        fields=request_fields(protocol, turn.model),
    )
    asking = RequestLoop(
        configuration=turn.configuration.name,
        repeat=turn.repeat,
        protocol=protocol,
        material=turn.material,
        client=client,
        done=turn.done,
        write=turn.write,
        fresh=turn.server.fresh,
        check=turn.server.check,
    )
    asking.run()
    return asking.warmed
