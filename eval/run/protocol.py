"""Passes A, B and C against one server: order and records of the requests.

A job is a sequence of requests of one worker. With order `passes` every job is one request and a
pass ends before the next begins; with order `samples` a job is all passes of one sample. Order and
concurrency are the same for every configuration.
"""

from __future__ import annotations

import hashlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple, TypeAlias

import msgspec

from kvproof.eval.benchmark.data import DataSet, Sample
from kvproof.eval.benchmark.extract import extract
from kvproof.eval.benchmark.prompts import PromptSet, rotated
from kvproof.eval.benchmark.truncate import Prompt, Truncation
from kvproof.eval.run.config import Configuration, EvalConfig, Protocol
from kvproof.eval.run.records import Abilities, Differences, Done, Phase, SampleRecord
from kvproof.eval.run.server import key_of
from kvproof.harness.http.completion_client import CompletionClient, Reply, joined
from kvproof.harness.isolation.threads import interruptible

ROTATED = "choices rotated by one"
"""Description of pass C without other questions about the documents."""


class Request(NamedTuple):
    """One sample in one pass."""

    phase: Phase
    number: int


Job = tuple[Request, ...]


class Stage(NamedTuple):
    """Jobs that run at the same time; the next stage begins after the last of them."""

    jobs: Sequence[Job]
    at_once: int


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of a question that is no sample of LongBench v2, for its record."""

    id: str
    domain: str
    sub_domain: str = ""
    difficulty: str = ""
    length: str = ""
    answer: str = ""
    """The right answer, as `Material.extract` returns it."""


Question: TypeAlias = Sample | Asked


class Exchange(NamedTuple):
    """A request with its reply."""

    prompt: bytes
    """Prompt of the first turn, for its digest."""
    reply: Reply
    cut: bool = False
    """The prompt has lost its middle."""
    turn: int = 0
    """Place of the question in its conversation."""
    differences: Differences | None = None


class RunSink(NamedTuple):
    """Output of a run."""

    write: Callable[[msgspec.Struct], None]
    progress: Callable[[str, int, int], None]
    """Activity, for example a configuration, its records so far, and their total."""
    logs: Path
    """Folder for the servers' output."""


class Material(ABC):
    """Samples of a benchmark, the same for every configuration.

    By default all configurations are asked every sample in every pass of the protocol.
    """

    @property
    @abstractmethod
    def count(self) -> int:
        """Number of samples of a pass."""

    def order(self, config: EvalConfig) -> Iterable[Configuration]:
        """Configurations in the order in which they are asked, each after the one before."""
        return config.configuration

    def meet(self, one: Configuration, client: CompletionClient, sink: RunSink) -> Abilities | None:
        """Prepare for a configuration on its ready server; return the options that it accepts.

        Raises UsageError for a server that cannot be used.
        """
        del one, client, sink  # any server will do
        return None

    def begin(self, configuration: str, protocol: Protocol) -> Iterable[Stage]:
        """Return the requests of a configuration, none of which is sent yet."""
        del configuration  # all are asked the same
        return [Stage(jobs, protocol.concurrency) for jobs in stages(protocol, self.count)]

    def planned(self, configuration: str, protocol: Protocol) -> int:
        """Count the requests of a configuration, as far as they are known."""
        stages = self.begin(configuration, protocol)
        return sum(len(job) for stage in stages for job in stage.jobs)

    @abstractmethod
    def sample(self, request: Request) -> Question:
        """Sample of a request."""

    @abstractmethod
    def ask(self, client: CompletionClient, request: Request, protocol: Protocol) -> Exchange:
        """Send the request of a sample, and further turns."""

    @abstractmethod
    def extract(self, request: Request, text: str) -> str | None:
        """Answer that a text gives; None if it gives none."""


@dataclass(frozen=True)
class Questions(Material):
    """Samples of LongBench v2 and their prompts."""

    data: DataSet
    prompts: PromptSet
    truncation: Truncation
    shared: DataSet | None = None
    """Other questions about the same documents in the same order."""

    @property
    def count(self) -> int:
        """Number of samples of a pass."""
        return len(self.data.cards)

    def prompt(self, request: Request, sample: Sample) -> Prompt:
        """Return the prompt of a request."""
        del request  # of the same sample in another pass nothing differs
        return self.truncation.apply(self.prompts.render(sample))

    def ask(self, client: CompletionClient, request: Request, protocol: Protocol) -> Exchange:
        """Send the prompt; for a pair also the second one, with the first answer."""
        sample = self.sample(request)
        prompt, cut = self.prompt(request, sample)
        sent = prompt.encode(errors="surrogatepass")
        if not self.prompts.second:
            return Exchange(sent, client.ask(prompt), cut)
        first = client.ask(prompt, max_tokens=protocol.thought_tokens)
        if first.outcome != "answered":
            return Exchange(sent, first, cut)
        second = client.ask(self.prompts.render_second(sample, first.text))
        return Exchange(sent, joined(first, second), cut)

    def extract(self, request: Request, text: str) -> str | None:
        """Letter of an answer, by the official rules."""
        del request  # one rule for all
        return extract(text)

    def sample(self, request: Request) -> Sample:
        """Sample of a request."""
        if request.phase != "shared":
            return self.data.sample(request.number)
        if self.shared is not None:
            return self.shared.sample(request.number)
        return rotated(self.data.sample(request.number))


def stages(protocol: Protocol, count: int) -> list[list[Job]]:
    """Concurrent jobs, stage after stage."""
    if protocol.order == "samples":
        return [[tuple(Request(phase, n) for phase in protocol.phases) for n in range(count)]]
    return [[(Request(phase, n),) for n in range(count)] for phase in protocol.phases]


@dataclass
class RequestLoop:
    """One repeat of one configuration."""

    configuration: str
    repeat: int
    protocol: Protocol
    material: Material
    client: CompletionClient
    done: set[Done]
    """Requests that earlier parts of the run have recorded."""
    write: Callable[[SampleRecord], None]
    fresh: bool
    """The cache holds no prompts of earlier parts."""
    check: Callable[[], None] = lambda: None
    """Raises if the server is gone, so that the rest is not recorded as its answers."""
    begun: float = field(default_factory=time.monotonic)
    warmed: int = 0
    _seen: set[int] = field(default_factory=set)
    """Samples whose first pass this server has seen."""
    _stopped: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Send all requests without a record. Raises a worker's error, after all have ended."""
        for jobs, at_once in self.material.begin(self.configuration, self.protocol):
            self.stage(jobs, at_once)

    def _has(self, request: Request) -> bool:
        return (self.configuration, self.repeat, request.phase, request.number) in self.done

    def stage(self, stage: Sequence[Job], at_once: int) -> None:
        """Send the missing requests of one stage; workers take jobs in order."""
        jobs = [job for job in stage if any(not self._has(each) for each in job)]
        if not jobs:
            return
        self._warm_up(jobs)
        queue = iter(jobs)
        lock = threading.Lock()

        def work() -> None:
            for job in self._taken(queue, lock):
                for request in job:
                    self._one(request)

        self._in_threads(work, at_once)

    def _taken(self, queue: Iterator[Job], lock: threading.Lock) -> Iterator[Job]:
        while not self._stopped.is_set():
            with lock:
                job = next(queue, None)
            if job is None:
                return
            yield job

    def _in_threads(self, work: Callable[[], None], at_once: int) -> None:
        """An error, or Ctrl-C, stops the other workers."""
        ended: SimpleQueue[Future[None]] = SimpleQueue()  # `futures.wait` may keep locks if cut
        with interruptible(at_once, self._stop, when=BaseException) as pool:
            for _ in range(at_once):
                pool.submit(work).add_done_callback(ended.put)
            for _ in range(at_once):
                ended.get().result()

    def _stop(self) -> None:
        self._stopped.set()
        self.client.close()

    def _warm_up(self, jobs: Sequence[Job]) -> None:
        """Repeat, unrecorded, prompts that a restarted server has lost.

        A warm or shared pass is valid only if its documents are in the cache.
        """
        if not self.fresh or self.protocol.order == "samples" or jobs[0][0].phase == "cold":
            return
        for number in range(self.material.count):
            if number not in self._seen and self._has(Request("cold", number)):
                self._asked(Request("cold", number))
                self.warmed += 1

    def _one(self, request: Request) -> None:
        if self._has(request) and not self._needed_again(request):
            return
        started = time.monotonic() - self.begun
        asked = self._asked(request)
        if self._has(request):
            self.warmed += 1
            return
        if asked.reply.outcome == "dropped":
            self.check()
        self.write(self._record(request, asked, started))

    def _needed_again(self, request: Request) -> bool:
        """The first pass of a sample fills the cache for its later ones."""
        return self.protocol.order == "samples" and request.phase == "cold" and self.fresh

    def _asked(self, request: Request) -> Exchange:
        found = self.material.ask(self.client, request, self.protocol)
        self._seen.add(request.number)
        return found

    def _record(self, request: Request, asked: Exchange, at: float) -> SampleRecord:
        sample, reply = self.material.sample(request), asked.reply
        answered = reply.outcome == "answered"
        return SampleRecord(
            **{name: getattr(sample, name) for name in _OF_SAMPLES},
            **{name: getattr(reply, name) for name in _OF_REPLIES},
            configuration=self.configuration,
            phase=request.phase,
            repeat=self.repeat,
            number=request.number,
            expected=sample.answer,
            answer=self.material.extract(request, reply.text) if answered else None,
            seconds=round(reply.seconds, 6),
            first_token=None if reply.first_token is None else round(reply.first_token, 6),
            started=round(at, 6),
            prompt_sha256=hashlib.sha256(asked.prompt).hexdigest(),
            cut=asked.cut,
            turn=asked.turn,
            differences=asked.differences,
        )


_OF_SAMPLES = ("id", "domain", "sub_domain", "difficulty", "length")
_OF_REPLIES = (
    "outcome", "text", "finish_reason", "usage", "tries", "faults", "logprobs", "thought",
)  # fmt: skip
"""Fields of a record that are copied."""


def client_of(config: EvalConfig, one: Configuration, url: str, model: str) -> CompletionClient:
    """Return a client of a configuration's server. Raises UsageError without its key."""
    protocol = config.protocol
    fields = {"temperature": protocol.temperature, "max_tokens": protocol.max_tokens}
    named = {"model": model} if model else {}
    logprobs = {"logprobs": True} if protocol.logprobs else {}
    return CompletionClient(
        url,
        key=key_of(config.server_of(one)),
        timeout=protocol.timeout,
        retries=protocol.retries,
        stream=protocol.stream,
        fields={**named, **fields, **logprobs, **msgspec.to_builtins(protocol.sampling)},
    )
