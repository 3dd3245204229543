"""Records of a run: `run.json` and one line per sample in `samples.jsonl`.

Every line is flushed when its sample is done: a killed run loses at most the running samples. The
same command with the same directory resumes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import msgspec

from kvproof.eval.benchmark.data import DataFacts
from kvproof.eval.run.files import SAMPLES
from kvproof.harness.errors import UsageError
from kvproof.harness.http.completion import Outcome, Usage
from kvproof.harness.records.run_directory import Manifest, read_lines, read_manifest
from kvproof.harness.served.situations import Means

PassName = Literal["cold", "warm", "shared"]
"""Passes A, B and C."""

LoadName = Literal["1 at once", "8 at once", "64 at once", "eviction"]
"""Loads of conversations."""

PairName = Literal["again", "together", "inside", "border", "fill", "drawn"]
"""Passes of answers that are compared token by token, besides those of questions. `fill` only fills
the cache, and is compared with nothing; `drawn` is drawn for a situation."""

Phase = PassName | LoadName | PairName | Literal["recomputed"]
"""Part of a run that a request belongs to."""

PHASES: tuple[PassName, ...] = ("cold", "warm", "shared")


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions that must be equal for two runs to be comparable."""

    data: DataFacts
    shared: str
    """SHA-256 of the file with other questions, or the rotation of choices."""
    prompt: str
    prompt_sha256: str
    truncation: str
    extraction: str
    model: str
    weights: str = ""
    """Digest of the weights; empty if they are not on this machine."""
    temperature: float
    max_tokens: int
    sampling: dict[str, Any]
    """Further fields of every request."""
    phases: tuple[PassName, ...]
    order: str
    concurrency: int
    repeats: int
    thought_tokens: int = 0
    """Tokens of the first answer, if the prompts are a pair."""
    runner: str = "kvproof"
    """The client: kvproof itself, or OpenCompass with it."""


class Differences(msgspec.Struct, frozen=True, kw_only=True):
    """One answer held against the recomputed one, token by token."""

    control: bool
    """Recomputed, to measure the noise."""
    expected_cached: int | None
    """Cached tokens of the answer that counts as recomputed; half of the prompt contradicts."""
    places: tuple[int, ...]
    """Compared places of the answer, from 0."""
    largest: tuple[float, ...]
    """Largest difference of one log-probability at each place, in nats."""
    kl: tuple[float, ...]
    flips: int
    left: int
    requests: int
    situations: tuple[str, ...] = ()
    """Names of `harness.served.situations` that the first request met."""
    shared: int | None = None
    """Tokens that the prompt has in common with an earlier request to the server."""
    contradiction: str = ""
    """Why the server's count of cached tokens cannot be right."""


class SampleRecord(msgspec.Struct, frozen=True, kw_only=True, tag="sample", tag_field="record"):
    """One sample of one pass against one configuration."""

    configuration: str
    phase: Phase
    repeat: int
    number: int
    """Number of the sample in the file."""
    id: str
    domain: str
    sub_domain: str
    difficulty: str
    length: str
    expected: str
    """The right answer: a letter, or a grade."""
    outcome: Outcome
    text: str
    answer: str | None
    finish_reason: str
    usage: Usage
    seconds: float
    first_token: float | None
    """Seconds until the first text arrived; None without streaming."""
    started: float
    """Seconds since the configuration's first request of this repeat."""
    tries: int
    faults: tuple[str, ...]
    """Errors of all failed tries."""
    prompt_sha256: str
    cut: bool
    logprobs: tuple[float, ...] = ()
    """Log-probabilities of the answer's tokens; empty if not reported."""
    thought: str = ""
    """The first answer of a prompt pair. Usage and first token are those of its turn."""
    turn: int = 0
    """Place of the question in its conversation."""
    differences: Differences | None = None
    """Only of answers that are compared token by token."""

    @property
    def correct(self) -> bool:
        """Answered, and right."""
        return self.answer == self.expected

    @property
    def given(self) -> str:
        """A letter or grade, `invalid`, or the error."""
        return self.outcome if self.outcome != "answered" else self.answer or "invalid"

    @property
    def cached_share(self) -> float | None:
        """Share of the prompt's tokens; None if not reported."""
        cached, total = self.usage.cached_tokens, self.usage.prompt_tokens
        return None if cached is None or not total else cached / total


class Abilities(msgspec.Struct, frozen=True, kw_only=True):
    """Options that a server accepts beyond a plain completion."""

    top: int | None
    """Likeliest tokens in each place; None without log-probabilities."""
    token_ids: bool
    """`return_token_ids` gives the ids of prompt and answer."""
    ignore_eos: bool
    salt: bool
    """`cache_salt` is accepted: a request can be recomputed while its blocks stay cached."""
    salt_documented: bool = False
    """The server knows `cache_salt`, so that it must keep entries apart."""
    longest: int = 0
    """Tokens of the longest prompt with its answer; 0: not reported."""
    adapters: tuple[str, ...] = ()
    """Models of the list that are adapters of another one."""
    opening: int = 0
    """Tokens of a chat of one word; 0: images add none, or have no log-probabilities."""
    means: tuple[Means, ...] = ()
    """Means by which a client can bring about situations."""


class ServerRecord(msgspec.Struct, frozen=True, kw_only=True, tag="server", tag_field="record"):
    """A configuration's server was ready, with its models."""

    configuration: str
    repeat: int
    url: str
    models: tuple[str, ...]
    command: tuple[str, ...] = ()
    """Empty for a running server."""
    fresh: bool
    """Just started, or with an emptied cache."""
    engine: str = ""
    """Owner of its models, for example vllm; empty if not reported."""
    version: str = ""
    abilities: Abilities | None = None
    """Only where a benchmark needs some."""


def asked_as(given: str, server: ServerRecord) -> str:
    """Return the model name of requests: the configured one, else the server's."""
    if not given or (server.command and server.models and given not in server.models):
        return next(iter(server.models), "")  # a command may take a folder, served by its name
    return given


class ServerDied(msgspec.Struct, frozen=True, kw_only=True, tag="died", tag_field="record"):
    """A started server ended during requests, or never became ready."""

    configuration: str
    message: str
    log: str
    """The end of its output."""


class Finished(msgspec.Struct, frozen=True, kw_only=True, tag="finished", tag_field="record"):
    """All samples of a configuration's repeat are recorded."""

    configuration: str
    repeat: int
    seconds: float
    warmed: int = 0
    """Prompts repeated without a record, because a restart had emptied the cache."""


class Scored(msgspec.Struct, frozen=True, kw_only=True, tag="scored", tag_field="record"):
    """Scores of OpenCompass for one of its data sets, in percent, as in its tables."""

    configuration: str
    repeat: int
    data: str
    """Name of the data set in the tables of OpenCompass."""
    metrics: dict[str, float]
    right: int = 0
    """Right answers of the same requests by the strict rule."""
    score: float | None = None
    """Mean score of the same requests by our own rule, in percent; None with letters."""
    total: int = 0
    edited: int = 0
    """Prompts in which OpenCompass's template has replaced text of a document."""


class Lost(msgspec.Struct, frozen=True, kw_only=True, tag="lost", tag_field="record"):
    """A request without an answer that belongs to no sample."""

    configuration: str
    message: str


Cause = Literal["salt", "server"]


class Unequal(msgspec.Struct, frozen=True, kw_only=True, tag="unequal", tag_field="record"):
    """Recomputed answers to one prompt that differ before anything is judged."""

    configuration: str
    cause: Cause
    """`salt`: an answer repeats under its own salt, and another salt changes it."""
    largest: float
    """Largest difference in a place, in nats."""


Record = SampleRecord | ServerRecord | ServerDied | Finished | Scored | Lost | Unequal

_decode = msgspec.json.Decoder(Record).decode


class EvalRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run read from its directory."""

    directory: Path
    manifest: Manifest
    records: list[Record]

    @property
    def samples(self) -> list[SampleRecord]:
        """All samples, in the order of completion."""
        return samples_of(self.records)


def read_eval(directory: Path) -> EvalRun:
    """Read a run directory. Raises UsageError if it holds no evaluation."""
    manifest = read_manifest(directory)
    if manifest.verb != "eval":
        raise UsageError(
            f"{str(directory)!r} holds a run of kvproof {manifest.verb}",
            "give the directory that kvproof eval printed",
        )
    records, _ = read_lines(directory / SAMPLES, _decode)
    return EvalRun(directory=directory, manifest=manifest, records=records)


Done = tuple[str, int, Phase, int]
"""Configuration, repeat, pass, number of the sample."""


def samples_of(records: Iterable[Record]) -> list[SampleRecord]:
    """Return the samples among records, in the order of completion."""
    return [each for each in records if isinstance(each, SampleRecord)]


def most_at_once(samples: Iterable[SampleRecord]) -> int:
    """Count the requests of a part that ran at the same time, at most; by configuration."""
    edges: dict[tuple[str, int], list[tuple[float, int]]] = {}
    for each in samples:
        of = edges.setdefault((each.configuration, each.repeat), [])
        of += [(each.started, 1), (each.started + each.seconds, -1)]
    counts = (accumulate(step for _, step in sorted(of)) for of in edges.values())
    return max(map(max, counts), default=0)


def finished(records: Iterable[Record]) -> set[tuple[str, int]]:
    """Configuration and repeat of completed parts."""
    return {(e.configuration, e.repeat) for e in records if isinstance(e, Finished)}


def models_of(given: str, records: Sequence[Record]) -> set[str]:
    """Models of the recorded answers."""
    last = {(e.configuration, e.repeat): e for e in records if isinstance(e, ServerRecord)}
    asked = {(e.configuration, e.repeat) for e in samples_of(records)} | finished(records)
    return {asked_as(given, server) for key, server in last.items() if key in asked}


def done(records: Iterable[Record]) -> set[Done]:
    """Requests that are done."""
    return {
        (each.configuration, each.repeat, each.phase, each.number)
        for each in records
        if isinstance(each, SampleRecord)
    }
