"""What was measured: figures, weights, engines, requests; other weights are refused."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from kvproof.eval.run.records import Usage, read_eval
from kvproof.eval.run.weights import weights_digest, weights_files
from kvproof.eval.verdict.compare import check_comparable
from kvproof.eval.verdict.score import score
from kvproof.eval.verdict.summary import restored
from kvproof.harness.cli.progress import progress
from kvproof.harness.errors import UsageError
from kvproof.suites.tests.cli.cli_kit import here, refused
from kvproof.suites.tests.evaluation.eval_kit import record, wrong
from kvproof.suites.tests.evaluation.eval_server import scripted
from kvproof.suites.tests.evaluation.test_eval_cli import arguments, prepared, servers
from kvproof.suites.tests.patience import until


def folder(path: Path, weights: bytes, **more: bytes) -> Path:
    path.mkdir()
    for name, data in {"model.safetensors": weights, **more}.items():
        (path / name).write_bytes(data)
    return path


def test_the_digest_is_that_of_the_weights_alone(tmp_path: Path) -> None:
    one = folder(tmp_path / "one", b"1" * 100, **{"config.json": b"{}"})
    same = folder(tmp_path / "same", b"1" * 100, **{"pytorch_model.bin": b"old"})
    other = folder(tmp_path / "other", b"1" * 99 + b"2")
    digests = [weights_digest(str(each)) for each in (one, same, other)]
    assert digests[0] == digests[1] != digests[2]
    assert weights_digest("Qwen/Qwen3-8B") == weights_digest("") == ""
    assert [each.name for each in weights_files(str(same))] == ["model.safetensors"]


def test_the_hubs_cache_has_the_digest_in_its_names(tmp_path: Path) -> None:
    data = b"weights"
    blob = tmp_path / hashlib.sha256(data).hexdigest()
    blob.write_bytes(data)
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    (snapshot / "model.safetensors").symlink_to(blob)
    plain = folder(tmp_path / "plain", data)
    assert weights_digest(str(snapshot)) == weights_digest(str(plain))
    blob.write_bytes(b"not read again")
    assert weights_digest(str(snapshot)) == weights_digest(str(plain))


def test_weights_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=r"cannot read the weights .*model\.safetensors"):
        weights_digest(str(tmp_path))


def test_every_format_states_what_was_measured_and_other_weights_are_refused(
    tmp_path: Path,
) -> None:
    prepared(tmp_path)
    models = [folder(tmp_path / name, name.encode()) for name in ("old", "new")]
    same = folder(tmp_path / "same", b"old")
    with servers(engine={"owner": "scripted", "version": "9.9"}) as (off, on):
        for model in (*models, same):
            more = ("--model", str(model), "--output", f"run-{model.name}")
            done = here(*arguments(off, on, *more), cwd=tmp_path)
            assert done.code == 0, done
    digest = weights_digest(str(models[0]))
    for name in ("report.html", "report.md", "comparison.json"):
        text = (tmp_path / "run-old" / name).read_text().replace("\\", "")
        for part in (digest, off.url, "not reported", "scripted", "9.9"):
            assert part in text or (part == "not reported" and name.endswith("json")), (name, part)
    found = json.loads((tmp_path / "run-old" / "comparison.json").read_text())
    assert [each["configuration"] for each in found["measured"]] == ["off", "off again", "on"]
    refused(
        here("eval", "compare", "run-old", "run-new", cwd=tmp_path), "the runs have other weights"
    )
    assert here("eval", "compare", "run-old", "run-same", cwd=tmp_path).code == 0


def test_unknown_weights_can_be_compared_with_any(tmp_path: Path) -> None:
    prepared(tmp_path)
    with servers() as (off, on):
        assert here(*arguments(off, on), "--output", "run", cwd=tmp_path).code == 0
    _, found = restored(read_eval(tmp_path / "run"))
    assert found.weights == ""
    check_comparable(found, found)


def test_quick_and_data_exclude_each_other(tmp_path: Path) -> None:
    prepared(tmp_path)
    with scripted() as server:
        done = here(*arguments(server, server, "--quick"), "--output", "run", cwd=tmp_path)
    refused(done, "--quick generates its own samples", "leave one of them out")


def test_off_a_terminal_the_state_is_printed_again_and_again() -> None:
    console = Console(file=io.StringIO(), width=100)
    with progress(console, every=0.05) as shown:
        shown("off", 2, 10)
        shown("off", 4, 10)
        until(lambda: console.file.getvalue().count("\n") >= 4)  # type: ignore[attr-defined]
        shown("on", 0, 10)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[0] == "off (2 of 10)"
    assert lines[-1] == "on (0 of 10)"
    between = lines[1:-1]
    assert len(between) >= 2
    assert all(line.startswith("off (4 of 10, after ") for line in between)
    assert all(" left)" in line for line in between)


def test_figures_of_a_pass() -> None:
    found = score(
        [
            record(0, first_token=0.2, usage=Usage(prompt_tokens=100, cached_tokens=50)),
            record(1, **wrong()),
            record(2, text="Hm.", answer=None, finish_reason="length", cut=True),
            record(3, outcome="timeout", text="", answer=None, tries=3),
            record(4, first_token=None, usage=Usage(prompt_tokens=100, problem="odd")),
        ],
        min_cached=0.5,
        concurrency=2,
    )
    assert (found.overall.right, found.overall.total) == (2, 5)
    assert (found.invalid, found.errors, found.retried, found.cut) == (1, {"timeout": 1}, 1, 1)
    assert (found.hits, found.reported, found.problems) == (1, 4, 1)
    assert found.cached == pytest.approx(0.125)
    assert found.first_token == pytest.approx(0.1)
    assert found.prompt_rate == pytest.approx(400 / (4 * 0.5 / 2))
    assert found.reasons == {"stop": 3, "length": 1}
    groups = {name: (each.right, each.total) for name, each in found.groups.items()}
    assert groups == {
        "short": (1, 2),
        "medium": (1, 2),
        "long": (0, 1),
        "easy": (2, 3),
        "hard": (0, 2),
        "Multi-Document QA": (2, 5),
    }
