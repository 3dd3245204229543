"""Many generated runs: a nightly bench, corpus, expected failures and planted faults."""

from __future__ import annotations

import random
from datetime import datetime, timedelta, timezone
from pathlib import Path

from msgspec.structs import replace

from kvproof.harness.records.events import Ended, Failure, Replayed
from kvproof.harness.records.fault_events import FaultJudged
from kvproof.harness.records.run_directory import Manifest, RunWriter
from kvproof.suites.tests.analysis.test_compare import sample, verdict

STEP, SLOWER = 120, 1.2
"""From this run on the reference takes so much longer."""


def write_history(place: Path, runs: int, *, cases: int = 8, faults: int = 60) -> Path:
    generator = random.Random(1)
    for number in range(runs):
        started = datetime(2026, 1, 1, 3, tzinfo=timezone.utc) + timedelta(days=number)
        writer = RunWriter(
            place / f"{number:03d}",
            Manifest(
                id=f"{number:03d}",
                verb="gate",
                command=["kvproof", "gate"],
                started=started.isoformat(),
                config={},
                versions={"kvproof": "0.4.0"},
                hardware={"processor": "some cpu", "cores": "2"},
                commit=f"{number:040x}",
            ),
        )
        for event in events(number, generator, cases, faults):
            writer.write(event)
        writer.close()
    return place


def events(number: int, generator: random.Random, cases: int, faults: int):
    level = SLOWER if number >= STEP else 1.0
    for case in range(cases):
        for repetition in range(5):
            noise = generator.gauss(1, 0.02)
            first = sample(level * noise if case == 0 else noise, repetition=repetition)
            yield replace(first, case=f"case {case}")
    for name in range(60):
        yield verdict(f"property_{name}", "fail" if name == 7 and number % 40 == 3 else "pass")
    if number >= 50:
        known = verdict("known", "expected_failure")
        yield replace(known, target="vllm==0.33.0", reason="upstream 123")
    for log in range(20 + number // 10):
        yield Replayed(target="reference", path=f"corpus/{log}.json", outcome="FIXED")
    if number % 40 == 3:
        yield Failure(
            target="reference",
            property="property_7",
            rules=["B1"],
            oracle="shadow",
            sentence="it broke",
            fingerprint=f"f{number}",
            op_log="",
            script="",
            script_path="",
            history=[],
        )
    for fault in range(faults if number % 5 == 0 else 0):
        yield FaultJudged(
            fault=f"fault_{fault}",
            mechanism="m",
            kind="soundness",
            bugs=[],
            story="s",
            module="m",
            expected="p",
            outcome="survived" if fault < 3 and number < 100 else "killed",
        )
    yield Ended(verdict="pass", exit_code=0, sentence="done", seconds=1.0)
