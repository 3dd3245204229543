"""Shared context of our OpenCompass components: job, data sets and request loop.

Imported in OpenCompass's environment only.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from opencompass.utils.text_postprocessors import first_option_postprocess

from kvproof.eval.benchmark.data import LETTERS, DataSet, Letter, Sample
from kvproof.eval.benchmark.truncate import Prompt, Truncation
from kvproof.eval.long_context.rows import RowFile, Rows
from kvproof.eval.opencompass.job import (
    Job,
    Message,
    RowsJob,
    StageDone,
    decode,
    encode,
    read_job,
)
from kvproof.eval.run.protocol import Material, Questions, Request, RequestLoop, client_of
from kvproof.eval.run.records import SampleRecord


class OpenCompassContext:
    """Job, data sets and request loop of all components."""

    def __init__(self, path: str) -> None:
        self.job = job = read_job(path)
        self.one = next(c for c in job.config.configuration if c.name == job.configuration)
        self._texts: dict[Request, Callable[[], str]] = {}
        self.rows = Rows(RowFile(Path(job.rows))) if isinstance(job, RowsJob) else None
        self.questions = self._questions(job) if isinstance(job, Job) else None
        material = self.rows or self.questions
        assert material  # there are two kinds of jobs
        self._material: Material = material
        self._answers = Path(job.answers).open("ab")  # noqa: SIM115 - open as long as the process
        self._lock = threading.Lock()
        self.records = {Request(e.phase, e.number): e for e in _read(Path(job.earlier))}
        self._asking = self._made()

    def _questions(self, job: Job) -> Questions:
        protocol = job.config.protocol
        return _QuestionsOfOpenCompass(
            _opened(job.data, job),
            job.prompts,
            Truncation(protocol.tokenizer, protocol.max_prompt_tokens),
            _opened(job.shared, job) if job.shared else None,
            self._given,
        )

    def _given(self, request: Request) -> str:
        """Text of a pass that OpenCompass has rendered, for this pass or for an equal one."""
        if request in self._texts:
            return self._texts[request]()
        first = Request(self.job.config.protocol.phases[0], request.number)
        return self._texts[first]() if request.phase == "warm" else self._ours(request)

    def _made(self) -> RequestLoop:
        job = self.job
        return RequestLoop(
            configuration=job.configuration,
            repeat=job.repeat,
            protocol=job.config.protocol,
            material=self._material,
            client=client_of(job.config, self.one, job.url, job.model),
            done={(job.configuration, job.repeat, *request) for request in self.records},
            write=self._write,
            fresh=job.fresh,
        )

    def ask(self, stage: int, text: Callable[[int], str]) -> list[SampleRecord]:
        """Send one data set's requests; `text` returns the prompt of the request at an index."""
        requests = [request for job in self.job.stages[stage] for request in job]
        self._texts |= {each: _bound(text, n) for n, each in enumerate(requests)}
        self._asking.stage(self.job.sent(stage), self.job.config.protocol.concurrency)
        answers = [self.records[request] for request in requests]
        found = StageDone(
            stage=stage,
            warmed=self._asking.warmed,
            edited=sum(text(n) != self._ours(each) for n, each in enumerate(requests)),
            right=sum(guessed(each.text) == each.expected for each in answers),
        )
        self._send(found)
        return answers

    def _ours(self, request: Request) -> str:
        """Prompt by our own rendering."""
        if self.rows:
            return joined(self.rows.file.row(request.number).messages)
        assert self.questions  # there are two kinds of jobs
        return self.questions.prompts.render(self.questions.sample(request))

    def _write(self, record: SampleRecord) -> None:
        self.records[Request(record.phase, record.number)] = record
        self._send(record)

    def _send(self, message: Message) -> None:
        with self._lock:
            self._answers.write(encode(message) + b"\n")
            self._answers.flush()


context_of = cache(OpenCompassContext)
"""Context by the path of the job."""


def _opened(path: str, job: Job) -> DataSet:
    found = DataSet(Path(path), skip_bad_rows=bool(job.left_out))
    found.leave_out(job.left_out)
    found.keep(job.config.samples)
    return found


def joined(messages: Iterable[Mapping[str, str]]) -> str:
    """Return a conversation as one text, to compare."""
    return json.dumps([(each["role"], each["content"]) for each in messages])


def _bound(text: Callable[[int], str], place: int) -> Callable[[], str]:
    return lambda: text(place)


def _read(path: Path) -> list[SampleRecord]:
    records = [decode(line) for line in path.read_bytes().splitlines()]
    return [each for each in records if isinstance(each, SampleRecord)]


@dataclass(frozen=True)
class _QuestionsOfOpenCompass(Questions):
    """Prompts that OpenCompass has rendered."""

    given: Callable[[Request], str] = lambda _: ""

    def prompt(self, request: Request, sample: Sample) -> Prompt:
        del sample
        return self.truncation.apply(self.given(request))


def guessed(text: str) -> Letter | None:
    """Return the letter that OpenCompass extracts from a text."""
    found = first_option_postprocess(text, options="".join(LETTERS))
    return found if found in LETTERS else None
