"""Every command of the README's table, with its simplest useful arguments, on a fresh machine.

It ends with a verdict, or with a sentence and the next step.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from kvproof.harness.cli.app import VERBS
from kvproof.suites.tests.cli.cli_kit import KVPROOF, here
from kvproof.suites.tests.patience import LONG
from kvproof.suites.tests.project.test_layout import ROOT

CORPUS = ROOT / "suites" / "corpus"
MODEL = ROOT / "suites" / "tests" / "planner" / "model_configs" / "llama_3_1_8b.json"
JUDGED = (0, 3)
"""Exit codes of a search that its time ends: what it has seen by then depends on the machine."""
SIMPLEST: dict[str, tuple[str, int | tuple[int, int], str]] = {
    "run": ("--budget debug", 3, "INCONCLUSIVE"),
    "fuzz": ("--max-time 2s --workers 1", JUDGED, "repeat with: kvproof fuzz"),
    "replay": ("log.json", 0, "PASS"),
    "xfail": ("run", 2, "has no failures"),
    "bisect": ("log.json --target vllm --first 0.0.1", 2, "none of the releases of vllm"),
    "certify": ("nothing --class blocks", 2, "unknown target 'nothing'"),
    "certificate": ("verify log.json", 2, "is no certificate"),
    "gate": ("--config small.toml", 3, "INCONCLUSIVE"),
    "faults": ("--only last_block_off_by_one", 0, "PASS"),
    "bench": ("--workload shared-prefix:requests=2,length=64 --no-growth", 0, "PASS"),
    "sweep": ("--kernels no_such_kernel", 2, "no_such_kernel"),
    "eval": ("generate samples --samples 2 --max-tokens 2000", 0, "written: samples/"),
    "probe": ("http://127.0.0.1:9/v1", 2, "is it running, and the port right?"),
    "record": ("", 0, "export KVPROOF_RECORD"),
    "watch": ("", 2, "give a command or --attach"),
    "explain": ("log.json", 0, "hit"),
    "compare": ("run other", 2, "compare runs of one verb"),
    "baseline": ("save run", 0, "baseline main: 1 run in"),
    "merge": ("run other --output merged", 0, "PASS"),
    "report": ("run", 0, "PASS"),
    "history": (".", 0, "Report:  history.html"),
    "plan": ("--model-config model.json --memory 64GiB", 0, "requests of"),
    "serve": ("--model symbolic --port 0 --num-blocks 65", 0, "http://"),
    "cache-server": ("--memory 1MiB --address ipc://{folder}/s", 0, "cache server"),
    "targets": ("list", 0, "reference"),
    "new-target": ("mine", 0, "kvproof run --target kvproof_target:make_target"),
    "doctor": ("", 0, "CPU clock"),
}
"""Verb -> arguments, exit code, and words of its answer."""
SERVERS = ("serve", "cache-server")
SMALL = """\
[run]
budget = "debug"
[gate]
bench = false
sweep = false
"""


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as a user has it after a first replay, and a home folder with nothing in it."""
    monkeypatch.setenv("KVPROOF_HOME", str(tmp_path / "home"))
    for name, log in (("run", "log.json"), ("other", "other.json")):
        source = sorted(CORPUS.glob("split_node*.json"))[0]
        shutil.copy(source, tmp_path / log)
        here("replay", log, "--output", name, cwd=tmp_path)
    shutil.copy(MODEL, tmp_path / "model.json")
    (tmp_path / "small.toml").write_text(SMALL)
    return tmp_path


def test_every_command_of_the_table_has_its_simplest_line() -> None:
    table = (ROOT / "README.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| \[?`([a-z-]+)`", table, re.MULTILINE)) == sorted(SIMPLEST)
    assert set(SIMPLEST) == set(VERBS)


@pytest.mark.slow(reason="runs every command")
@pytest.mark.parametrize("verb", [verb for verb in SIMPLEST if verb not in SERVERS])
def test_it_ends_with_a_verdict_or_a_sentence(fresh: Path, verb: str) -> None:
    arguments, code, words = SIMPLEST[verb]
    done = here(verb, *arguments.split(), cwd=fresh)
    assert done.code in (code if isinstance(code, tuple) else (code,)), done
    assert words in done.out + done.err
    assert "Traceback" not in done.err
    if code == 2:
        first, hint = done.err.splitlines()
        assert first.startswith("kvproof: ")
        assert hint.startswith("  ")


@pytest.mark.slow(reason="starts servers")
@pytest.mark.parametrize("verb", SERVERS)
def test_a_server_says_where_it_is_and_ends_when_it_is_asked_to(fresh: Path, verb: str) -> None:
    arguments, _, words = SIMPLEST[verb]
    line = [KVPROOF, verb, *arguments.format(folder=fresh).split()]
    with subprocess.Popen(line, cwd=fresh, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert words in server.stdout.readline()
        server.send_signal(signal.SIGTERM)
        assert server.wait(LONG) in (0, 130)
