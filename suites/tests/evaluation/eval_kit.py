"""Small runs against scripted servers, and records made by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from kvproof.eval.benchmark.data import DataSet
from kvproof.eval.benchmark.prompts import own_prompts
from kvproof.eval.benchmark.truncate import Truncation
from kvproof.eval.run.config import Configuration, EvalConfig, Judge, Protocol, Server
from kvproof.eval.run.generator import GeneratorOptions, write_generated
from kvproof.eval.run.protocol import Questions, RunSink
from kvproof.eval.run.records import PHASES, Phase, Record, SampleRecord, Usage
from kvproof.eval.run.runner import evaluate
from kvproof.eval.verdict.compare import Comparison, compare
from kvproof.suites.tests.patience import LONG

SMALL = GeneratorOptions(samples=12, max_tokens=2000)


def configuration(name: str, *, control: bool = False, **other: Any) -> Configuration:
    return Configuration(name=name, control=control, **other)


def configured(
    *urls: str, protocol: Protocol | None = None, judge: Judge | None = None
) -> EvalConfig:
    """Off, off again, on; at these addresses in turn."""
    off, again, on = (Server(base_url=url, reset="/reset") for url in urls)
    return EvalConfig(
        protocol=protocol
        or Protocol(retries=0, timeout=LONG, concurrency=1, control_concurrency=1),
        judge=judge or Judge(),
        configuration=(
            configuration("off", prefix_cache=False, server=off),
            configuration("off again", control=True, prefix_cache=False, server=again),
            configuration("on", server=on),
        ),
    )


@contextmanager
def small_material(folder: Path, options: GeneratorOptions = SMALL) -> Iterator[Questions]:
    data, shared = write_generated(folder, options)
    with DataSet(data) as first, DataSet(shared) as second:
        yield Questions(first, own_prompts(), Truncation(), second)


@dataclass
class Kept:
    """An outlet that keeps everything, and may fail after so many samples."""

    records: list[Record] = field(default_factory=list)
    breaks_after: int = -1

    def write(self, record: Record) -> None:
        if self.breaks_after == len(self.samples):
            raise KeyboardInterrupt
        self.records.append(record)

    @property
    def samples(self) -> list[SampleRecord]:
        return [each for each in self.records if isinstance(each, SampleRecord)]

    def of(self, name: str, phase: Phase) -> list[SampleRecord]:
        return [e for e in self.samples if (e.configuration, e.phase) == (name, phase)]

    def outlet(self, folder: Path) -> RunSink:
        return RunSink(self.write, lambda *_: None, folder)


def run_small(
    folder: Path,
    config: EvalConfig,
    kept: Kept | None = None,
    options: GeneratorOptions = SMALL,
) -> Kept:
    kept = kept or Kept()
    with small_material(folder, options) as found:
        evaluate(config, found, kept.outlet(folder), earlier=list(kept.records))
    return kept


def judged(config: EvalConfig, kept: Kept, samples: int = SMALL.samples) -> Comparison:
    return compare(config, kept.samples, samples)


def record(number: int, **other: Any) -> SampleRecord:
    """A right answer to one sample, unless said otherwise."""
    made = SampleRecord(
        configuration="off",
        phase="cold",
        repeat=0,
        number=number,
        id=f"s{number:03}",
        domain="Multi-Document QA",
        sub_domain="Legal",
        difficulty=("easy", "hard")[number % 2],
        length=("short", "medium", "long")[number % 3],
        expected="B",
        outcome="answered",
        text="The correct answer is (B)",
        answer="B",
        finish_reason="stop",
        usage=Usage(prompt_tokens=100, completion_tokens=6, cached_tokens=0),
        seconds=0.5,
        first_token=0.1,
        started=0.5 * number,
        tries=1,
        faults=(),
        prompt_sha256="0" * 64,
        cut=False,
    )
    return msgspec.structs.replace(made, **other)


Change = Callable[[int], dict[str, Any]]


def side(name: str, count: int, change: Change = lambda _: {}) -> list[SampleRecord]:
    """All passes of a configuration; a cache that is on hits in all but the cold one."""
    found = []
    for phase in PHASES:
        for number in range(count):
            cached = 90 if name.startswith("on") and phase != "cold" else 0
            usage = Usage(prompt_tokens=100, completion_tokens=6, cached_tokens=cached)
            each = record(number, configuration=name, phase=phase, usage=usage)
            found.append(msgspec.structs.replace(each, **change(number)))
    return found


def wrong(letter: str = "C") -> dict[str, Any]:
    return {"text": f"The correct answer is ({letter})", "answer": letter}


def some(numbers: Sequence[int], change: dict[str, Any]) -> Change:
    return lambda number: change if number in numbers else {}
