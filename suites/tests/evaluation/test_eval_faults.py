"""Faults of a cache show in a real server's answers: `kvproof serve`, with the symbolic model.

Its answer depends on every entry that a step reads, so that texts tell what accuracy would have to
be lost for with a real one.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kvproof.eval.run.config import Configuration, EvalConfig, Judge, Protocol, Server
from kvproof.eval.run.records import PHASES
from kvproof.suites.faults import eval_server
from kvproof.suites.faults.catalogue import of_suite
from kvproof.suites.faults.eval_server import FAULTS
from kvproof.suites.faults.planting import changed, origin
from kvproof.suites.reference.evaluation.strategies import SUITE
from kvproof.suites.tests.evaluation.eval_kit import judged, run_small

VISIBLE = ("wrong-block", "position", "kernel-block")
"""What a model without states and adapters shows; `eval/configs/faults.toml` has all faults."""

SERVE = ("serve", "--model", "symbolic", "--port", "{port}", "--max-model-len", "20000",
         "--num-blocks", "4000", "--block-size", "64", "--kernel-block-size", "16")  # fmt: skip


def launched(name: str, fault: str = "none") -> Configuration:
    start = ("{python}", "-m", "kvproof.suites.faults.eval_server", fault)
    return Configuration(name=name, server=Server(launch=(*start, *SERVE), ready_within=60))


@pytest.mark.nightly(reason="its parts are tested fast")
@pytest.mark.slow(reason="computes with torch models")
def test_planted_faults_flip_texts_and_a_correct_cache_flips_none(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn", reason="the extra serve is not installed")
    off, again = (
        Configuration(
            name=name,
            control=name == "off again",
            prefix_cache=False,
            arguments=("--no-enable-prefix-caching",),
            server=launched(name).server,
        )
        for name in ("off", "off again")
    )
    config = EvalConfig(
        protocol=Protocol(max_tokens=4, retries=0),
        judge=Judge(rule="texts", margin=0.25),
        configuration=(off, again, launched("on"), *(launched(name, name) for name in VISIBLE)),
    )
    kept = run_small(tmp_path, config)
    assert {each.outcome for each in kept.samples} <= {"answered", "empty"}
    found = {(row.after, row.phase): row for row in judged(config, kept).rows}
    for phase in PHASES:
        assert found["off again", phase].texts == 0
        assert found["on", phase].verdict == "pass", found["on", phase].reasons
        assert found["on", phase].texts == 0
    flipped = {name: {p for p in PHASES if found[name, p].verdict == "fail"} for name in VISIBLE}
    assert flipped == {
        "wrong-block": {"warm", "shared"},
        "position": set(PHASES),  # even the common header is longer than a block of bytes
        "kernel-block": set(PHASES),
    }


@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.edits])
def test_the_edits_of_a_fault_fit_the_code_as_it_is(name: str) -> None:
    for edit in FAULTS[name].edits:
        source = changed(edit, origin(edit.module).read_text())
        compile(source, edit.module, "exec")


def test_a_tenant_asks_first_through_a_planted_line_and_nothing_is_patched() -> None:
    (edit,) = FAULTS["tenant"].edits
    assert edit.module == "harness.cli.actions.serving.serve"
    source = changed(edit, origin(edit.module).read_text())
    assert source.index("ask_for_tenant(built)") < source.rindex("    _run(built, config, bound, ")
    assert "setattr(" not in Path(eval_server.__file__).read_text()


def test_an_unknown_fault_is_named_with_the_known_ones() -> None:
    command = [sys.executable, "-m", "kvproof.suites.faults.eval_server", "typo", "serve"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "there is no fault 'typo': one of none, tenant, wrong-block" in done.stderr


def test_every_property_has_its_fault_in_the_catalogue() -> None:
    assert {fault.property for fault in of_suite("evaluation")} == {
        p.name for p in SUITE.properties
    }
