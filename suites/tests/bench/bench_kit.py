"""Targets that are easy to measure, and a runner that answers for workers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from kvproof.harness.bench import job as bench_job
from kvproof.harness.bench.cases import (
    BenchOptions,
)
from kvproof.harness.bench.runner import run_bench
from kvproof.harness.contract.profile import Profile
from kvproof.harness.isolation import worker_main as worker
from kvproof.harness.isolation.handles import Isolation
from kvproof.harness.records.events import AnyEvent

E = TypeVar("E")

REFERENCE = "kvproof.harness.adapters.reference.target:make_target"
WORKLOAD = "shared-prefix:requests=120,length=256,shared=0.75,families=4"
QUICK = BenchOptions(
    block_sizes=(16,), repetitions=2, growth_sizes=(), checked_tokens=0, memory_tokens=20_000
)

TOY = '''
import time

class Cycle:
    """Remembers every full block of every prompt for ever, a payload of 1,000 bytes for each."""

    def __init__(self, config, variant):
        self.config, self.variant, self.known = config, variant, {}

    def prepare(self, tokens):
        return tokens.tolist() if self.variant == "lists" else tokens.tobytes()

    def run(self, index, prompt):
        width = 1 if isinstance(prompt, list) else 4
        step, size = self.config.block_size * width, len(prompt)
        hit, matching = 0, True
        for end in range(step, size + 1, step):
            key = hash((end, bytes(prompt[:end]) if width == 4 else tuple(prompt[:end])))
            matching = matching and key in self.known and end < size
            hit += matching * self.config.block_size
            self.known.setdefault(key, bytes(1000))
        ids = range(-(-size // step))
        return hit, ids, ids

    def cached_blocks(self):
        return len(self.known)

def make_cycle(config, variant):
    if variant == "index":
        from kvproof.harness.errors import UnsupportedVerb
        raise UnsupportedVerb("make_cycle", "no index of its own")
    return Cycle(config, variant)
'''

INDEXED = (
    TOY
    + """
class Indexed(Cycle):
    given = {"prompt": "bytes", "tables": "a range"}

    @property
    def lacks(self):
        return "tables" if self.variant == "index" else ""

    def run(self, index, prompt):
        hit, ids, freed = super().run(index, prompt)
        return (hit, (), ()) if self.variant == "index" else (hit, ids, freed)

def make_cycle(config, variant):
    return Indexed(config, variant)
"""
)

MUTE = (
    TOY
    + """
class Mute(Cycle):
    def run(self, index, prompt):
        hit, ids, freed = super().run(index, prompt)
        return hit, ids[:-1], freed

def make_cycle(config, variant):
    return Mute(config, variant)
"""
)

SLOWING = (
    TOY
    + '''
class Slowing(Cycle):
    """Looks at every cached block in each request."""

    def run(self, index, prompt):
        sum(1 for _ in self.known)
        return super().run(index, prompt)

def make_cycle(config, variant):
    return Slowing(config, variant)
'''
)


@pytest.fixture
def toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    sources = {"toy": TOY, "mute": MUTE, "slowing": SLOWING, "indexed": INDEXED, "bare": ""}
    for name, source in sources.items():
        (tmp_path / f"kvproof_test_{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(bench_job, "LEAST_CPU_SECONDS", 0.001)
    yield
    for name in sources:
        sys.modules.pop(f"kvproof_test_{name}", None)


def factory(name: str) -> str:
    return f"kvproof_test_{name}:make_target"


class FakeRunner:
    """Runs jobs here, except those it was given an answer for."""

    isolation: Isolation = "in_process"

    def __init__(self, name: str, toy: str = "toy", **answers: Any) -> None:
        self.name = name
        self.factory = factory(toy)
        self.answers = answers
        self.jobs: list[tuple[str, dict[str, Any]]] = []

    @property
    def profile(self) -> Profile:
        if "profile" in self.answers:
            raise self.answers["profile"]
        return Profile(engine=self.name, version="1", block_sizes=(16,))

    def run_job(self, job: str, arguments: dict[str, Any], *, timeout: float) -> dict[str, Any]:
        assert timeout > 60
        self.jobs.append((job, dict(arguments)))
        answer = self.answers.get("checked" if "checked_job" in job else job.partition(":")[2])
        if isinstance(answer, Exception):
            raise answer
        result: dict[str, Any] = answer or worker.load(job)(arguments)
        return result


def events_of(
    *runners: FakeRunner, options: BenchOptions = QUICK, workload: str = WORKLOAD
) -> list[AnyEvent]:
    events: list[AnyEvent] = []
    said: list[str] = []
    run_bench(runners, workload, options=options, write=events.append, progress=said.append)
    assert said
    return events


def only(kind: type[E], events: list[AnyEvent]) -> list[E]:
    return [event for event in events if isinstance(event, kind)]
