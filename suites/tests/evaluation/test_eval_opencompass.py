"""OpenCompass is really run: its data set, template, inferencer and evaluator, our requests."""

from __future__ import annotations

import codecs
import json
import re
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kvproof.eval.benchmark.data import DataSet
from kvproof.eval.benchmark.prompts import opencompass_prompts
from kvproof.eval.opencompass.environment import OpenCompass
from kvproof.eval.opencompass.job import encode
from kvproof.eval.opencompass.runner import Runner
from kvproof.eval.run.config import Protocol
from kvproof.eval.run.protocol import Questions
from kvproof.eval.run.records import PHASES, SampleRecord, Scored, done
from kvproof.eval.run.runner import ConfigurationRun, direct
from kvproof.eval.run.server import Serving
from kvproof.harness.errors import UsageError
from kvproof.harness.isolation.environments import state
from kvproof.harness.isolation.supervised import Died
from kvproof.suites.tests.cli.cli_kit import here, refused
from kvproof.suites.tests.evaluation.eval_kit import SMALL, configured, record, small_material
from kvproof.suites.tests.evaluation.eval_server import Server, scripted

COUNT = SMALL.samples

installed = pytest.mark.skipif(
    state(OpenCompass()) != "installed", reason="OpenCompass is not installed: kvproof eval install"
)


class Stopped(Exception):
    """Stands for a kill."""


class Session:
    """Turns of one configuration against a scripted server, and all they record."""

    def __init__(self, server: Server, material: Questions, **protocol: Any) -> None:
        one = {"concurrency": 1, "control_concurrency": 1}  # so that the order is known
        settings = {"retries": 0, "timeout": 4.0, **one, **protocol}
        self.config = configured(*[server.url] * 3, protocol=Protocol(**settings))
        self.server, self.material = server, material
        self.samples: list[SampleRecord] = []
        self.scored: list[Scored] = []
        self.stops_after = -1
        self.check = lambda: None

    def write(self, each: SampleRecord | Scored) -> None:
        if isinstance(each, Scored):
            self.scored.append(each)
            return
        if len(self.samples) == self.stops_after:
            raise Stopped
        self.samples.append(each)

    def turn(self) -> ConfigurationRun:
        on = self.config.configuration[-1]
        serving = Serving(self.server.url, ("reader",), (), fresh=True, check=self.check)
        earlier = list(self.samples)
        return ConfigurationRun(
            self.config, on, 0, serving, "reader", self.material, done(earlier), earlier, self.write
        )


@contextmanager
def session(folder: Path, script: dict[str, Any] | None = None, **protocol: Any):
    with scripted(**(script or {})) as server, small_material(folder / "data") as material:
        yield Session(server, material, **protocol)


def runner(folder: Path) -> Runner:
    return Runner(OpenCompass(), folder / "opencompass")


FAULTS = {1: "500", 3: "400", 5: "empty", 7: "slow", 9: "drop", 10: "cut", 11: "garbage",
          14: "chatty", 20: "error event"}  # fmt: skip
CLASSES = {"server_error": 2, "refused": 1, "empty": 1, "timeout": 1, "dropped": 2, "malformed": 1}


@pytest.mark.slow(reason="OpenCompass starts: seconds of CPU each time")
@installed
def test_every_fault_is_one_sample_of_its_class_and_opencompass_scores_the_rest(
    tmp_path: Path,
) -> None:
    with session(tmp_path, {"faults": FAULTS}) as through:
        runner(tmp_path)(through.turn())
        asked = list(through.server.prompts)
    with session(tmp_path / "direct", {"faults": FAULTS}) as plain:
        direct(plain.turn())
        assert asked == plain.server.prompts
    found = [(e.phase, e.number, e.outcome, e.answer, e.usage) for e in through.samples]
    assert found == [(e.phase, e.number, e.outcome, e.answer, e.usage) for e in plain.samples]
    assert len(found) == 3 * COUNT
    lost = Counter(e.outcome for e in through.samples if e.outcome != "answered")
    assert lost == CLASSES
    cold, warm, _ = through.scored
    assert (cold.data, cold.right, cold.total) == ("custom_cold", COUNT - 7, COUNT)
    assert cold.metrics["accuracy"] == pytest.approx(100 * (COUNT - 7) / COUNT)
    assert warm.right == COUNT - 2  # a chatty answer has no letter by the strict rule, one failed
    assert list((tmp_path / "opencompass" / "on-0" / "work").glob("*/summary/*.csv"))


@pytest.mark.slow(reason="OpenCompass starts: seconds of CPU each time")
@installed
@pytest.mark.parametrize(
    ("order", "stop", "killed"), [("passes", COUNT + 4, direct), ("samples", 7, None)]
)
def test_a_killed_run_goes_on_and_loses_nothing(
    tmp_path: Path, order: str, stop: int, killed: Any
) -> None:
    with session(tmp_path, order=order) as through:
        through.stops_after = stop
        with pytest.raises(Stopped):
            (killed or runner(tmp_path))(through.turn())
        assert len(through.samples) == stop
        through.stops_after = -1
        through.server.blocks.clear()
        asked = len(through.server.prompts)
        warmed = runner(tmp_path)(through.turn())
        again = len(through.server.prompts) - asked
    keys = [(e.phase, e.number) for e in through.samples]
    assert len(set(keys)) == len(keys) == 3 * COUNT
    assert all(each.correct for each in through.samples)
    assert warmed <= COUNT
    assert warmed or order == "samples"  # there only a sample that the kill fell into
    assert again <= 3 * COUNT - stop + warmed
    warm = [e.cached_share or 0 for e in through.samples[stop:] if e.phase == "warm"]
    assert min(warm) > 0.9
    assert {each.data for each in through.scored} == {f"custom_{name}" for name in PHASES}
    assert {each.metrics["accuracy"] for each in through.scored} == {100.0}


@pytest.mark.slow(reason="OpenCompass starts: seconds of CPU each time")
@installed
def test_its_own_prompt_is_asked_and_its_evaluator_is_a_second_opinion(tmp_path: Path) -> None:
    script = {2: "chatty", 4: "400"}
    with session(tmp_path, {"faults": script}, phases=("cold", "shared")) as through:
        through.material = Questions(
            through.material.data,
            opencompass_prompts(OpenCompass().prompts),
            through.material.truncation,
        )
        runner(tmp_path)(through.turn())
        sent = through.server.prompts
    assert sent[0].startswith("Please read the following text and answer the questions below.")
    assert "step by step" in sent[0]
    chatty = through.samples[2]
    assert chatty.text == "I think it is B, or A."
    assert chatty.answer is None  # OpenCompass guesses a letter
    assert (through.samples[4].outcome, through.samples[4].answer) == ("refused", None)
    guessed = chatty.expected == "A"  # its rule takes the A of "or A."
    found = through.scored[0]
    assert (found.right, found.edited) == (COUNT - 2, 0)
    assert found.metrics["accuracy"] == pytest.approx(100 * (COUNT - 2 + guessed) / COUNT)
    assert all(each.correct for each in through.samples[COUNT:])  # choices rotated


@pytest.mark.slow(reason="OpenCompass starts: seconds of CPU each time")
@installed
def test_bad_rows_a_mark_and_fields_in_documents_pass_through_opencompass(tmp_path: Path) -> None:
    with session(tmp_path, phases=("cold",)) as through:
        rows = json.loads(through.material.data.path.read_text())
        rows[3]["answer"] = "E"
        rows[5]["context"] += " the field {choice_A} of a template"
        path = tmp_path / "marked.json"
        path.write_bytes(codecs.BOM_UTF8 + json.dumps(rows).encode())
        with DataSet(path, skip_bad_rows=True) as data:
            material = through.material
            through.material = Questions(data, material.prompts, material.truncation)
            runner(tmp_path)(through.turn())
    assert [each.id for each in through.samples] == [
        row["_id"] for number, row in enumerate(rows) if number != 3
    ]
    found = through.scored[0]
    assert (found.right, found.total, found.edited) == (COUNT - 1, COUNT - 1, 1)


RESULTS = "t/results/on"


class Stub(NamedTuple):
    """In the place of OpenCompass's Python: a shell script."""

    python: Path


def stub(folder: Path, script: str) -> Runner:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return Runner(Stub(path), folder / "opencompass")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo first; echo cannot do it; exit 1", "ended with code 1:\nfirst\ncannot do it"),
        ("kill -9 $$", "ended with code 137"),
        ("exit 0", "ended without a result for custom_cold of 'on'"),
        (
            f"mkdir -p {RESULTS}; echo '{{\"accuracy\": 50.0}}' > {RESULTS}/custom_cold.json",
            "finds 50.00 % of custom_cold right in 'on', the records by the same rule none",
        ),
    ],
)
def test_a_failure_of_opencompass_is_said_with_its_log(
    tmp_path: Path, script: str, message: str
) -> None:
    with session(tmp_path) as through:
        through.samples = [
            record(n, configuration="on", phase=p) for p in PHASES for n in range(COUNT)
        ]
        with pytest.raises(UsageError, match=re.escape(message)) as caught:
            stub(tmp_path, script)(through.turn())
    assert "opencompass/on-0" in caught.value.hint


def test_a_server_that_dies_ends_the_turn_and_its_drops_are_not_recorded(tmp_path: Path) -> None:
    lines = [record(0, configuration="on"), record(1, configuration="on", outcome="dropped")]
    (tmp_path / "lines").write_bytes(b"".join(encode(each) + b"\n" for each in lines))
    with session(tmp_path) as through:

        def gone() -> None:
            raise Died("the server ended with code 7", "")

        through.check = gone
        script = f"cat {tmp_path}/lines > ../answers.jsonl; sleep 60"
        with pytest.raises(Died):
            stub(tmp_path, script)(through.turn())
    assert [each.number for each in through.samples] == [0]


def test_what_was_answered_and_not_read_is_taken_over(tmp_path: Path) -> None:
    from kvproof.eval.opencompass.runner import _At, _taken_over

    with session(tmp_path) as through:
        through.samples = [record(0, configuration="on")]
        turn = through.turn()
        left = [record(0, configuration="on"), record(1, configuration="on"),
                record(2, configuration="on", outcome="dropped", answer=None)]  # fmt: skip
        lines = [encode(each) + b"\n" for each in left]
        (tmp_path / "answers.jsonl").write_bytes(b"".join(lines) + lines[0][:30])
        assert [each.number for each in _taken_over(_At(tmp_path), turn)] == [1]
    assert [each.number for each in through.samples] == [0, 1]
    assert not (tmp_path / "answers.jsonl").exists()


@pytest.mark.parametrize("order", ["passes", "samples"])
def test_with_the_order_samples_the_first_data_set_asks_all_passes(
    tmp_path: Path, order: str
) -> None:
    from kvproof.eval.opencompass.runner import _At, _prepared

    with session(tmp_path, order=order) as through:
        job = _prepared(_At(tmp_path / "on-0"), through.turn(), [])
    assert job.names == [f"custom_{name}" for name in PHASES]
    sent = [[(each.phase, each.number) for each in sum(job.sent(n), ())] for n in range(3)]
    if order == "passes":
        assert sent == [[(phase, n) for n in range(COUNT)] for phase in PHASES]
    else:
        assert sent == [[(phase, n) for n in range(COUNT) for phase in PHASES], [], []]


def test_without_its_environment_the_command_that_builds_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVPROOF_HOME", str(tmp_path / "home"))
    config = tmp_path / "config.toml"
    config.write_text(
        '[server]\nbase_url = "http://127.0.0.1:9/v1"\n[[configuration]]\nname = "off"\n'
        '[[configuration]]\nname = "off again"\ncontrol = true\n[[configuration]]\nname = "on"\n'
    )
    for more in (
        ["--runner", "opencompass"],
        ["--prompts", "opencompass"],
    ):
        done = here("eval", "longbench-v2", "--config", "config.toml", *more, cwd=tmp_path)
        refused(done, "OpenCompass 0.5.4 is missing", "kvproof eval install")
    assert not list(tmp_path.glob("runs/*/run.json"))
