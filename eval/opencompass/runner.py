"""Runs OpenCompass against a ready server, in OpenCompass's own environment.

One process per repeat of a configuration builds the data sets, sends requests, writes predictions,
scores them and prints its table. Its records are read meanwhile, so that progress, a dead server
and a killed run are handled as with kvproof's own client.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from kvproof.eval.benchmark.data import DataSet, Kind, Sample, write_data
from kvproof.eval.benchmark.prompts import rotated
from kvproof.eval.long_context.rows import Rows
from kvproof.eval.opencompass.environment import OpenCompass
from kvproof.eval.opencompass.job import (
    AnyJob,
    Job,
    Message,
    RowsJob,
    StageDone,
    decode,
    encode,
    written_config,
)
from kvproof.eval.run.protocol import Questions, Request
from kvproof.eval.run.records import SampleRecord, Scored
from kvproof.eval.run.runner import ConfigurationRun
from kvproof.harness.errors import UsageError
from kvproof.harness.isolation.supervised import Supervised
from kvproof.harness.redaction import redacted_bytes

PROMPT_NOTE = (
    "prompt of OpenCompass, neither the official 0-shot prompt nor the official chain of thought: "
    "no figure is comparable with the leaderboard"
)

LABELS: dict[Kind, str] = {
    "published": "LongBenchV2",
    "synthetic": "synthetic",
    "custom": "custom",
}
"""Names of data sets in the tables of OpenCompass."""

MAIN = str(Path(__file__).with_name("worker_main.py"))

_POLL = 0.1

OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "NO_PROXY": "127.0.0.1,localhost",
    "MPLBACKEND": "Agg",
}

_LOG_LINES = 8

_ROUNDING = 1e-6
"""Percent."""

_SCORE_ROUNDING = 0.006
"""Percent; OpenCompass rounds scores of RULER to two digits."""


@dataclass(frozen=True)
class Runner:
    """Sends requests through OpenCompass; `folder` keeps its files."""

    place: OpenCompass
    folder: Path

    def __call__(self, turn: ConfigurationRun) -> int:
        """See `Runner` of `run`. Raises Died, or UsageError if OpenCompass fails."""
        name = turn.configuration.name.replace(" ", "_")
        at = _At(self.folder.absolute() / f"{name}-{turn.repeat}")
        earlier = [*turn.earlier, *_taken_over(at, turn)]
        job = _prepared(at, turn, earlier)
        follower = _Follower(at.answers, turn, earlier)
        with _started(self.place, at) as process:
            while process.code is None:
                follower.read()
                time.sleep(_POLL)
        follower.read()
        if process.code:
            raise failed(process.code, at.log)
        for each in _scored(at, job, follower, turn):
            turn.write(each)
        return follower.warmed


class _At:
    """Files of one configuration."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "log.txt"
        self.job, self.config = folder / "job.json", folder / "config.py"
        self.earlier, self.answers = folder / "earlier.jsonl", folder / "answers.jsonl"
        self.work = folder / "work"
        """Working folder of OpenCompass; recreated for each run."""


def _prepared(at: _At, turn: ConfigurationRun, earlier: Sequence[SampleRecord]) -> AnyJob:
    at.folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(at.work, ignore_errors=True)
    at.work.mkdir()
    at.earlier.write_bytes(b"".join(encode(each) + b"\n" for each in earlier))
    job = _job(at, turn)
    at.job.write_bytes(redacted_bytes(msgspec.json.encode(job)))
    passes = list(_passes(at, turn)) if isinstance(job, Job) else []
    at.config.write_text(written_config(job, at.job, passes), encoding="utf-8")
    return job


def _job(at: _At, turn: ConfigurationRun) -> AnyJob:
    found = turn.material
    common: dict[str, Any] = {
        "config": turn.config,
        "configuration": turn.configuration.name,
        "repeat": turn.repeat,
        "url": turn.server.url,
        "model": turn.model,
        "fresh": turn.server.fresh,
        "samples": found.count,
        "earlier": str(at.earlier),
        "answers": str(at.answers),
    }
    if isinstance(found, Rows):
        return RowsJob(rows=str(found.file.path.absolute()), sets=tuple(found.sets()), **common)
    assert isinstance(found, Questions)  # there are two kinds of material
    return Job(
        data=str(found.data.path.absolute()),
        shared=str(found.shared.path.absolute()) if found.shared else "",
        label=LABELS[found.data.facts.kind],
        prompts=found.prompts,
        left_out=found.data.left_out,
        **common,
    )


def _taken_over(at: _At, turn: ConfigurationRun) -> Iterator[SampleRecord]:
    """Record answers of a killed run that were not read yet.

    A dropped connection is retried, because its server may have been dying.
    """
    for record in _lines(at.answers, 0)[0]:
        if isinstance(record, SampleRecord) and record.outcome != "dropped":
            key = (record.configuration, record.repeat, record.phase, record.number)
            if key not in turn.done:
                turn.done.add(key)
                turn.write(record)
                yield record
    at.answers.unlink(missing_ok=True)


def _passes(at: _At, turn: ConfigurationRun) -> Iterator[Path]:
    """Files of all passes; OpenCompass reads neither bad rows nor a byte order mark."""
    found = turn.material
    assert isinstance(found, Questions)  # rows have no passes of their own
    data = _clean(found.data, at.folder / "data.json")
    for phase in turn.config.protocol.phases:
        if phase != "shared":
            yield data
        elif found.shared:
            yield _clean(found.shared, at.folder / "shared.json")
        else:
            rows = (rotated(each) for each in _samples(found.data))
            yield write_data(at.folder / "rotated.json", rows)


def _clean(data: DataSet, copy: Path) -> Path:
    if data.left_out or data.marked or data.kept:
        return write_data(copy, _samples(data))
    return data.path.absolute()


def _samples(data: DataSet) -> Iterator[Sample]:
    return (data.sample(number) for number in range(len(data.cards)))


def _started(place: OpenCompass, at: _At) -> Supervised:
    """Start OpenCompass; it ends with this process."""
    arguments = [str(at.config), "-w", str(at.work), "--debug", "--dump-eval-details", "False"]
    environment = OFFLINE | {"HF_DATASETS_CACHE": str(at.work / "cache")}
    line = [str(place.python), "-I", MAIN, *arguments]
    return Supervised(line, at.log, environment=environment, folder=at.work)


class _Follower:
    """Reads the records of OpenCompass while it runs."""

    def __init__(self, path: Path, turn: ConfigurationRun, earlier: Sequence[SampleRecord]) -> None:
        self._path, self._turn, self._offset, self.warmed = path, turn, 0, 0
        self.right = {Request(e.phase, e.number): e.correct for e in earlier}
        """Whether a request's answer is right, by the strict rule."""
        self.texts = {Request(e.phase, e.number): e.text for e in earlier}
        self.stages: dict[int, StageDone] = {}

    def read(self) -> None:
        """Read new records. Raises Died if the server is gone; later answers are ignored."""
        found, self._offset = _lines(self._path, self._offset)
        for record in found:
            if isinstance(record, StageDone):
                self.warmed, self.stages[record.stage] = record.warmed, record
                continue
            if record.outcome == "dropped":
                self._turn.server.check()
            self._turn.write(record)
            request = Request(record.phase, record.number)
            self.right[request], self.texts[request] = record.correct, record.text


def _lines(path: Path, offset: int) -> tuple[list[Message], int]:
    data = b""
    with suppress(FileNotFoundError), path.open("rb") as file:
        file.seek(offset)
        data = file.read()
    end = data.rfind(b"\n") + 1
    return [decode(line) for line in data[:end].splitlines()], offset + end


def failed(code: int, log: Path) -> UsageError:
    """Return the error of an OpenCompass that has failed, with its last lines."""
    lines = log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
    return UsageError(
        "\n".join([f"OpenCompass ended with code {code}:", *lines]),
        f"its whole log is {str(log)!r}; the same command goes on from there",
    )


def _scored(at: _At, job: AnyJob, found: _Follower, turn: ConfigurationRun) -> Iterator[Scored]:
    """Return the scores of each data set.

    Raises UsageError if OpenCompass has scored other answers than the recorded ones.
    """
    for number, (name, stage) in enumerate(zip(job.names, job.stages, strict=True)):
        metrics, done = _metrics(at, job, name), found.stages.get(number)
        requests = [request for each in stage for request in each]
        score = _score(turn, found, requests) if isinstance(job, RowsJob) else None
        _check_score(at, job, name, metrics, _share(done, requests) if score is None else score)
        yield Scored(
            configuration=job.configuration,
            repeat=job.repeat,
            data=name,
            metrics=metrics,
            right=sum(found.right[each] for each in requests),
            total=len(requests),
            score=score,
            edited=done.edited if done else 0,
        )


def _share(done: StageDone | None, requests: Sequence[Request]) -> float:
    """Right answers by OpenCompass's rule in percent; -1 if none was recorded."""
    return 100 * done.right / len(requests) if done else -1.0


def _score(turn: ConfigurationRun, found: _Follower, requests: Sequence[Request]) -> float:
    """Mean score of the recorded texts in percent, by our rule."""
    assert isinstance(turn.material, Rows)  # letters have no score
    scores = [turn.material.score(each.number, found.texts[each]) for each in requests]
    return 100 * sum(scores) / len(scores)


def _check_score(at: _At, job: AnyJob, name: str, metrics: dict[str, float], ours: float) -> None:
    rows = isinstance(job, RowsJob)
    theirs = metrics.get("score" if rows else "accuracy", -1.0)
    if abs(theirs - ours) > (_SCORE_ROUNDING if rows else _ROUNDING):
        counted = f"{ours:.2f} %" if ours >= 0 else "none"
        raise UsageError(
            f"OpenCompass finds {theirs:.2f} % of {name} right in "
            f"{job.configuration!r}, the records by the same rule {counted}",
            f"its files are in {str(at.folder)!r}; please report this with both",
        )


def _metrics(at: _At, job: AnyJob, name: str) -> dict[str, float]:
    found = next(at.work.glob(f"*/results/{job.abbr}/{name}.json"), None)
    if found is None:
        raise UsageError(
            f"OpenCompass ended without a result for {name} of {job.configuration!r}",
            f"its log is {str(at.log)!r}",
        )
    metrics: dict[str, float] = msgspec.json.decode(found.read_bytes())
    metrics.pop("details", None)
    return metrics
