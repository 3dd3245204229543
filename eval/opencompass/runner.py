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
from typing import NamedTuple

import msgspec

from kvproof.eval.benchmark.data import DataSet, Kind, Sample, write_data
from kvproof.eval.benchmark.prompts import rotated
from kvproof.eval.opencompass.environment import OpenCompass
from kvproof.eval.opencompass.job import Job, Message, StageDone, decode, encode, written_config
from kvproof.eval.run.protocol import Request
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

_MAIN = str(Path(__file__).with_name("worker_main.py"))

_POLL = 0.1

_OFFLINE = {
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
        _check(at, process.code)
        for each in _scored(at, job, follower):
            turn.write(each)
        return follower.warmed


class _At(NamedTuple):
    """Files of one configuration."""

    folder: Path

    @property
    def job(self) -> Path:
        return self.folder / "job.json"

    @property
    def config(self) -> Path:
        return self.folder / "config.py"

    @property
    def earlier(self) -> Path:
        return self.folder / "earlier.jsonl"

    @property
    def answers(self) -> Path:
        return self.folder / "answers.jsonl"

    @property
    def work(self) -> Path:
        """Working folder of OpenCompass; recreated for each run."""
        return self.folder / "work"

    @property
    def log(self) -> Path:
        return self.folder / "log.txt"


def _prepared(at: _At, turn: ConfigurationRun, earlier: Sequence[SampleRecord]) -> Job:
    at.folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(at.work, ignore_errors=True)
    at.work.mkdir()
    at.earlier.write_bytes(b"".join(encode(each) + b"\n" for each in earlier))
    found = turn.material
    job = Job(
        config=turn.config,
        configuration=turn.configuration.name,
        repeat=turn.repeat,
        url=turn.server.url,
        model=turn.model,
        fresh=turn.server.fresh,
        data=str(found.data.path.absolute()),
        shared=str(found.shared.path.absolute()) if found.shared else "",
        samples=len(found.data.cards),
        label=LABELS[found.data.facts.kind],
        prompts=found.prompts,
        left_out=found.data.left_out,
        earlier=str(at.earlier),
        answers=str(at.answers),
    )
    at.job.write_bytes(redacted_bytes(msgspec.json.encode(job)))
    passes = list(_passes(at, turn)) if job.shipped else []
    at.config.write_text(written_config(job, at.job, passes), encoding="utf-8")
    return job


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
    if data.left_out or data.marked:
        return write_data(copy, _samples(data))
    return data.path.absolute()


def _samples(data: DataSet) -> Iterator[Sample]:
    return (data.sample(number) for number in range(len(data.cards)))


def _started(place: OpenCompass, at: _At) -> Supervised:
    """Start OpenCompass; it ends with this process."""
    arguments = [str(at.config), "-w", str(at.work), "--debug", "--dump-eval-details", "False"]
    environment = _OFFLINE | {"HF_DATASETS_CACHE": str(at.work / "cache")}
    line = [str(place.python), "-I", _MAIN, *arguments]
    return Supervised(line, at.log, environment=environment, folder=at.work)


class _Follower:
    """Reads the records of OpenCompass while it runs."""

    def __init__(self, path: Path, turn: ConfigurationRun, earlier: Sequence[SampleRecord]) -> None:
        self._path, self._turn, self._offset, self.warmed = path, turn, 0, 0
        self.right = {Request(e.phase, e.number): e.correct for e in earlier}
        """Whether a request's answer is right, by the strict rule."""
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
            self.right[Request(record.phase, record.number)] = record.correct


def _lines(path: Path, offset: int) -> tuple[list[Message], int]:
    data = b""
    with suppress(FileNotFoundError), path.open("rb") as file:
        file.seek(offset)
        data = file.read()
    end = data.rfind(b"\n") + 1
    return [decode(line) for line in data[:end].splitlines()], offset + end


def _check(at: _At, code: int) -> None:
    if code == 0:
        return
    lines = at.log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
    raise UsageError(
        "\n".join([f"OpenCompass ended with code {code}:", *lines]),
        f"its whole log is {str(at.log)!r}; the same command goes on from there",
    )


def _scored(at: _At, job: Job, found: _Follower) -> Iterator[Scored]:
    """Return the scores of each data set.

    Raises UsageError if OpenCompass has scored other answers than the recorded ones.
    """
    for number, (name, stage) in enumerate(zip(job.names, job.stages, strict=True)):
        done, metrics = found.stages.get(number), _metrics(at, job, name)
        requests = [request for each in stage for request in each]
        share = 100 * done.right / len(requests) if done else -1.0
        if done is None or abs(metrics["accuracy"] - share) > _ROUNDING:
            counted = f"{done.right} of {len(requests)}" if done else "none"
            raise UsageError(
                f"OpenCompass finds {metrics['accuracy']:.2f} % of {name} right in "
                f"{job.configuration!r}, the records by the same rule {counted}",
                f"its files are in {str(at.folder)!r}; please report this with both",
            )
        yield Scored(
            configuration=job.configuration,
            repeat=job.repeat,
            data=name,
            metrics=metrics,
            right=sum(found.right[each] for each in requests),
            total=len(requests),
            edited=done.edited,
        )


def _metrics(at: _At, job: Job, name: str) -> dict[str, float]:
    found = next(at.work.glob(f"*/results/{job.abbr}/{name}.json"), None)
    if found is None:
        raise UsageError(
            f"OpenCompass ended without a result for {name} of {job.configuration!r}",
            f"its log is {str(at.log)!r}",
        )
    metrics: dict[str, float] = msgspec.json.decode(found.read_bytes())
    metrics.pop("details", None)
    return metrics
