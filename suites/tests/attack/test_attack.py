"""The attack finds each planted hole, and knows the whole command line."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from random import Random

import pytest
from rich.console import Console

from kvproof.harness.cli.app import VERBS
from kvproof.suites.tests.attack.__main__ import CLASSES, Report, one
from kvproof.suites.tests.attack.classes.files import OF_FILES
from kvproof.suites.tests.attack.classes.requests import SERVER
from kvproof.suites.tests.attack.line import Installation, Option, Verb
from kvproof.suites.tests.attack.materials import BASES, base, command
from kvproof.suites.tests.attack.mutations import damaged
from kvproof.suites.tests.attack.processes import (
    MARK,
    Command,
    Outcome,
    _long_enough,
    run,
    start_real,
)
from kvproof.suites.tests.attack.session import Session
from kvproof.suites.tests.attack.values import SECRET, hostile
from kvproof.suites.tests.fast_share import one_in

INSTALLED = Installation(Path(sys.executable).with_name("kvproof"))
OLD_RUN = Path(__file__).parents[1] / "analysis" / "run_of_0_13"
HOLES = {
    "exit code": "exit 70",
    "traceback": "echo 'kvproof: no'; echo 'Traceback (most recent call last)' >&2; exit 2",
    "noise": "echo 'kvproof: no' >&2; echo 'UserWarning: old' >&2; exit 2",
    "one message": "echo 'no' >&2; exit 2",
    "long message": "printf 'kvproof: %05000d' 1 >&2; exit 2",
    "secret": f"echo 'kvproof: no {SECRET}' >&2; exit 2",
    "secret ": f"mkdir -p record; echo {SECRET} > record/report.md",
    "outside": "touch elsewhere",
    "outside ": "echo > settings.toml",
    "left behind": "mkdir -p record; touch record/.run.json.17",
    "orphan": "setsid sleep 60 >/dev/null 2>&1 &",
    "hang": "trap '' TERM; while :; do sleep 1; done",
    "hang ": "trap '' TERM; while :; do :; done",
    "record": 'mkdir -p record; echo "{}" > record/run.json',
    "lost events": "cp -r old record; printf '{\\n{\\n' >> record/events.jsonl",
}
"""Rule -> a command that breaks it."""
EACH = 1
"""Attacks of each class in a test."""


@pytest.fixture
def broken(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Session]:
    """A kvproof with a hole."""
    script = tmp_path / "bin" / "kvproof"
    script.parent.mkdir()
    script.write_text(f"#!/bin/sh\n{HOLES[request.param]}\n")
    script.chmod(0o755)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with Session(Installation(script), scratch, only_real=True) as session:
        shutil.copytree(OLD_RUN, session.worlds.template / "cwd" / "old")
        yield session


VERB = Verb(("run",), ())


def _prepare(folder: Path) -> Command:
    return command(VERB, base(VERB), folder, patience=1.0)


@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        pytest.param(hole, hole.strip(), marks=marks)
        for (hole,), marks, _ in one_in(0, HOLES, reason="finds planted faults by exploration")
    ],
    indirect=["broken"],
)
def test_each_hole_is_found(broken: Session, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"GRACE": 1.0, "LONGEST": 10.0, "LEAVING": 5.0}.items():
        monkeypatch.setattr(f"kvproof.suites.tests.attack.processes.{name}", seconds)
    found = broken.attempt(Random(0), "run", _prepare)
    assert rule in {each.rule for each in found.broken}, found


@pytest.mark.slow(reason="starts a process and is patient with it")
def test_a_command_that_is_only_late_is_not_hung(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sleeps for longer than its CPU time may be, as one does that gets no processor."""
    monkeypatch.setattr("kvproof.suites.tests.attack.processes.GRACE", 0.5)
    script = tmp_path / "late"
    script.write_text("#!/bin/sh\ntrap '' TERM\nsleep 4\n")
    script.chmod(0o755)
    (tmp_path / "cwd").mkdir()
    late = Command((), tmp_path, {MARK: "late", "PATH": os.environ["PATH"]}, patience=0.2)
    found = run(start_real(Installation(script), late), late, tmp_path / "none")
    assert (found.code, found.stopped, found.hung) == (0, True, False)


@pytest.mark.slow(reason="loads kvproof once more")
def test_a_command_that_a_failed_attack_has_left_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvproof.suites.tests.attack.processes.LONGEST", 30.0)
    (tmp_path / "scratch").mkdir()
    with (
        Session(INSTALLED, tmp_path / "scratch", only_real=False) as session,
        session.worlds.world() as folder,
    ):
        left = session.start(command(session.verb("serve"), SERVER, folder))
        assert left.code() is None
        found = session.run(command(VERB, SERVER, folder)._replace(words=("--version",)))
    assert found.code == 0


def test_what_holds_is_not_reported(tmp_path: Path) -> None:
    with Session(INSTALLED, tmp_path, only_real=True) as session:
        found = session.attempt(
            Random(0), "report", lambda folder: command(session.verb("report"), base(VERB), folder)
        )
    assert found.codes == ("2",)
    assert not found.broken, found


def test_every_verb_is_found_with_its_options() -> None:
    names = {verb.words[0] for verb in INSTALLED.verbs}
    assert names == set(VERBS)
    assert sum(len(verb.options) for verb in INSTALLED.verbs) > 150
    known = {verb.name for verb in INSTALLED.verbs}
    assert set(BASES) <= known
    assert {place.verb for place in OF_FILES} <= known


def test_an_option_that_nobody_wrote_down_is_attacked() -> None:
    option = Option(
        ("--new",), "<class 'float'>", required=True, positional=False, flag=False, choices=()
    )
    verb = Verb(("brand-new",), (option,))
    assert base(verb).options == {"--new": "1"}
    values = {hostile(option, Random(seed)) for seed in range(200)}
    assert ("nan", True) in values
    assert len(values) > 20


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.toml", "a.jsonl.gz", "a.txt"])
def test_damage_is_repeatable_and_various(name: str) -> None:
    data = b'a = "b"\n[c]\nd = 1\n' if name.endswith("toml") else b'{"a": [1, {"b": 2}]}\n'
    if name.endswith(".gz"):
        import gzip

        data = gzip.compress(data, mtime=0)
    seen = {damaged(name, data, Random(seed)) for seed in range(60)}
    assert len(seen) > 30
    if not name.endswith(".gz"):  # its header has the time
        assert damaged(name, data, Random(7)) == damaged(name, data, Random(7))


@pytest.mark.nightly(reason="a minute; each rule has fast tests")
@pytest.mark.slow(reason="attacks for some seconds")
def test_some_seconds_of_attacks_are_inside_the_rules(tmp_path: Path) -> None:
    """All classes but memory: with 16 MiB beyond its imports `sweep` ends with 70 (memory:1:18)."""
    classes = {name: each for name, each in CLASSES.items() if name != "memory"}
    report = Report(Console(), "")
    with Session(INSTALLED, tmp_path, only_real=False) as session:
        session.build(lambda _: None)
        for name, number in product(classes, range(EACH)):  # as many on every machine
            one(session, report, name, f"1:{number}")
    assert report.broken == 0
    assert all(report.figures[name].inputs for name in classes)


def test_without_torch_the_sweeps_are_left_out_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were an error that ended the attack."""
    installed = Installation(INSTALLED.command)
    installed.has_torch = False  # a cached property
    said: list[str] = []
    with Session(installed, tmp_path, only_real=True) as session:
        made: list[str] = []

        def run(command: Command) -> Outcome:
            made.append(command.words[0])
            return NOTHING

        monkeypatch.setattr(session, "run", run)  # each would take seconds
        session.build(said.append)
        assert "sweep" not in made
        assert {"bench", "replay", "gate"} <= set(made)
        assert "torch is not installed" in said[0]
        assert session.lacks("merge", "sweep")
        assert not session.lacks("merge", "run-a")


NOTHING = Outcome(0, "", "", 0.0, stopped=False, hung=False, sent=False, lines_before=0, left=())


def test_a_command_that_gets_no_processor_has_its_patience_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock alone would stop it: another command has the core."""
    seen = iter([0.1] * 5 + [0.6] * 1000)
    monkeypatch.setattr("kvproof.suites.tests.attack.processes.cpu_seconds", lambda _: next(seen))
    monkeypatch.setattr("kvproof.suites.tests.attack.processes._wants_cpu", lambda _: True)
    late = [_long_enough(1, seconds, 0.5) for seconds in (0.4, 0.6, 0.8, 1.0, 2.0, 3.0, 4.0)]
    assert late == [False, False, False, False, False, False, True]
