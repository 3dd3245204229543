"""A whole run: every configuration on its own server, in order; resumable at any sample."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

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
    RunSink,
    client_of,
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
from kvproof.eval.run.server import Serving, serving
from kvproof.eval.run.weights import weights_digest
from kvproof.harness.errors import UsageError
from kvproof.harness.isolation.supervised import Died


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
            first.keep(config.samples)
            yield Questions(first, prompts, truncation)
            return
        with DataSet(shared, own=name, skip_bad_rows=skip) as second:
            _check_shared(first, second, config.samples)
            yield Questions(first, prompts, truncation, second)


def _check_shared(first: DataSet, second: DataSet, most: int) -> None:
    bad = {**first.left_out, **{row: f"--shared: {why}" for row, why in second.left_out.items()}}
    first.leave_out(bad)
    second.leave_out(bad)
    if len(first.cards) != len(second.cards):
        raise UsageError(
            f"{len(second.cards)} further questions for {len(first.cards)} samples", _ALIKE
        )
    first.keep(most)
    second.keep(most)
    for number in range(len(first.cards)):
        if first.sample(number).context != second.sample(number).context:
            raise UsageError(f"row {number} of both files is about two documents", _ALIKE)


_ALIKE = "--shared holds one more question for every row of --data, about the same document"


def conditions(
    config: EvalConfig, found: Questions, *, runner: str = "kvproof", extraction: str = RULE
) -> Conditions:
    """Return the conditions that a comparable run must share."""
    return conditions_of(
        config,
        found.data.facts,
        shared=found.shared.facts.sha256 if found.shared else ROTATED,
        prompt=found.prompts.name,
        prompt_sha256=found.prompts.sha256,
        truncation=found.truncation.rule,
        extraction=extraction,
        runner=runner,
        thought_tokens=config.protocol.thought_tokens if found.prompts.second else 0,
    )


def conditions_of(config: EvalConfig, data: DataFacts, **others: Any) -> Conditions:
    """Return the conditions of any data: those of the protocol, and `others`."""
    protocol, names = msgspec.structs.asdict(config.protocol), Conditions.__struct_fields__
    common = {name: value for name, value in protocol.items() if name in names}
    weights = weights_digest(config.model)
    return Conditions(
        **{**common, "thought_tokens": 0, **others}, data=data, model=config.model, weights=weights
    )


def evaluate(
    config: EvalConfig,
    found: Material,
    outlet: RunSink,
    *,
    earlier: Sequence[Record] = (),
    runner: Runner | None = None,
    one_model: bool = True,
) -> None:
    """Run every configuration; requests with a record in `earlier` are skipped.

    The death of a started server is recorded; the next configuration follows. Raises UsageError if
    a running server does not answer, or with `one_model` serves another model than the first.
    """
    whole = finished(earlier)
    models = models_of(config.model, earlier) if one_model else None
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

    @property
    def requests(self) -> int:
        """Count all requests, as far as they are known."""
        return self.found.planned(self.one.name, self.config.protocol)


def _turn(plan: _Plan, outlet: RunSink, models: set[str] | None) -> None:
    one, repeat = plan.one, plan.repeat
    have = [
        each for each in samples_of(plan.earlier)
        if (each.configuration, each.repeat) == (one.name, repeat)
    ]  # fmt: skip
    begun = time.monotonic()
    outlet.progress(f"{one.name}: waiting for the server", len(have), plan.requests)
    log = outlet.logs / f"{one.name.replace(' ', '_')}-{repeat}.log"
    with serving(plan.config, one, log) as server:
        record = server_record(one.name, server, repeat)
        model = _model(plan, record, models)
        client = client_of(plan.config, one, server.url, model)
        outlet.write(replace(record, abilities=plan.found.meet(one, client, outlet)))
        counted = _Counted(outlet, one.name, len(have), plan.requests)
        turn = ConfigurationRun(
            _company(plan), one, repeat, server, model, plan.found, done(have),
            have, counted.write,
        )  # fmt: skip
        warmed = plan.runner(turn)
    seconds = round(time.monotonic() - begun, 3)
    outlet.write(Finished(configuration=one.name, repeat=repeat, seconds=seconds, warmed=warmed))


def _company(plan: _Plan) -> EvalConfig:
    """Return the settings with the control's own concurrency."""
    if not plan.one.control:
        return plan.config
    protocol = plan.config.protocol
    return replace(
        plan.config, protocol=replace(protocol, concurrency=protocol.control_concurrency)
    )


def server_record(configuration: str, server: Serving, repeat: int) -> ServerRecord:
    """Describe a server that is ready."""
    facts = server._asdict()
    del facts["check"]
    return ServerRecord(configuration=configuration, repeat=repeat, **facts)


class _Counted:
    """Writes samples and reports progress."""

    def __init__(self, outlet: RunSink, name: str, have: int, total: int) -> None:
        self._outlet, self._name, self._have, self._total = outlet, name, have, total

    def write(self, record: SampleRecord | Scored) -> None:
        self._outlet.write(record)
        self._have += isinstance(record, SampleRecord)
        self._outlet.progress(self._name, self._have, self._total)


def _model(plan: _Plan, server: ServerRecord, models: set[str] | None) -> str:
    """Model name of requests; without `models` each server may have its own."""
    model = asked_as(plan.config.model, server)
    if models is None:
        return model
    models.add(model)
    if len(models) > 1:
        raise UsageError(
            f"configuration {plan.one.name!r} serves {model!r}, others {models - {model}}",
            "serve one model under one name, or give its name with --model",
        )
    return model


def direct(turn: ConfigurationRun) -> int:
    """Send requests with kvproof's own client."""
    asking = RequestLoop(
        configuration=turn.configuration.name,
        repeat=turn.repeat,
        protocol=turn.config.protocol,
        material=turn.material,
        client=client_of(turn.config, turn.configuration, turn.server.url, turn.model),
        done=turn.done,
        write=turn.write,
        fresh=turn.server.fresh,
        check=turn.server.check,
    )
    asking.run()
    return asking.warmed
