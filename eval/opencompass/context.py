"""Shared context of our OpenCompass components: job, data sets and request loop.

Imported in OpenCompass's environment only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from opencompass.utils.text_postprocessors import first_option_postprocess

from kvproof.eval.benchmark.data import LETTERS, DataSet, Letter, Sample
from kvproof.eval.benchmark.truncate import Prompt, Truncation
from kvproof.eval.opencompass.job import Job, Message, StageDone, decode, encode, read_job
from kvproof.eval.run.protocol import Questions, Request, RequestLoop, request_fields
from kvproof.eval.run.records import SampleRecord
from kvproof.eval.run.server import key_of
from kvproof.harness.http.chat_client import ChatClient


class OpenCompassContext:
    """Job, data sets and request loop of all components."""

    def __init__(self, path: str) -> None:
        self.job = job = read_job(path)
        protocol = job.config.protocol
        self.one = next(c for c in job.config.configuration if c.name == job.configuration)
        self._texts: dict[Request, Callable[[], str]] = {}
        self.found = _QuestionsOfOpenCompass(
            _opened(job.data, job),
            job.prompts,
            Truncation(protocol.tokenizer, protocol.max_prompt_tokens),
            _opened(job.shared, job) if job.shared else None,
            lambda request: self._texts[request](),
        )
        self._answers = Path(job.answers).open("ab")  # noqa: SIM115 - open as long as the process
        self._lock = threading.Lock()
        self.records = {Request(e.phase, e.number): e for e in _read(Path(job.earlier))}
        self._asking = self._made()

    def _made(self) -> RequestLoop:
        job, protocol = self.job, self.job.config.protocol
        client = ChatClient(
            job.url,
            key=key_of(job.config.server_of(self.one)),
            timeout=protocol.timeout,
            retries=protocol.retries,
            stream=protocol.stream,
            fields=request_fields(protocol, job.model),
        )
        return RequestLoop(
            configuration=job.configuration,
            repeat=job.repeat,
            protocol=protocol,
            material=self.found,
            client=client,
            done={(job.configuration, job.repeat, *request) for request in self.records},
            write=self._write,
            fresh=job.fresh,
        )

    def ask(self, stage: int, text: Callable[[int], str]) -> list[SampleRecord]:
        """Send one data set's requests; `text` returns the prompt of the request at an index."""
        jobs = self.job.stages[stage]
        requests = [request for job in jobs for request in job]
        self._texts |= {each: _bound(text, n) for n, each in enumerate(requests)}
        self._asking.stage(jobs)
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
        return self.job.prompts.render(self.found.sample(request))

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
    return found


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
