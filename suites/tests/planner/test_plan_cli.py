"""`kvproof plan` from a config.json to a table, JSON and a page; bad input says what to do."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kvproof.reference.planner.capacity import capacity
from kvproof.reference.planner.rules import read_plan
from kvproof.suites.tests.cli.cli_kit import here, refused

CONFIGS = Path(__file__).parent / "model_configs"
LLAMA = str(CONFIGS / "llama_3_1_8b.json")
GPT = str(CONFIGS / "gpt_oss_20b.json")


def test_prints_what_fits_and_writes_the_plan(tmp_path: Path) -> None:
    done = here(
        "plan", "--model-config", LLAMA, "--memory", "64GiB", "--max-len", "32768",
        "--output", "out", cwd=tmp_path,
    )  # fmt: skip
    assert done.code == 0, done.err
    plan = read_plan((tmp_path / "out" / "plan.json").read_bytes())
    assert plan.num_blocks == 64 * 2**30 // (64 * 131_072)
    assert done.out.startswith(f"{capacity(plan).requests} requests of 32,768 tokens at once")
    assert re.search(r"^0 +everything +32 +64 +64 +512 +8.00 MiB +0.0 %", done.out, re.MULTILINE)
    page = (tmp_path / "out" / "plan.html").read_text()
    assert page.count("<svg") == 4
    assert f"{plan.num_blocks:,}" in page
    assert "<script" not in page


def test_a_stored_plan_is_shown_again(tmp_path: Path) -> None:
    first = here(
        "plan", "--model-config", GPT, "--memory", "16GiB", "--output", "out", cwd=tmp_path
    )
    again = here("plan", "--read", "out/plan.json", cwd=tmp_path)
    assert again.code == 0, again.err
    assert again.out.strip() == first.out.partition("\nwritten:")[0].strip()


def test_a_stored_plan_with_impossible_caches_is_refused(tmp_path: Path) -> None:
    here("plan", "--model-config", GPT, "--memory", "16GiB", "--output", "out", cwd=tmp_path)
    path = tmp_path / "out" / "plan.json"
    found = json.loads(path.read_text())
    for view in found["workers"][0]["views"]:
        view["heads"] = -1
    path.write_text(json.dumps(found))
    done = here("plan", "--read", "out/plan.json", "--output", "shown", cwd=tmp_path)
    refused(done, "the plan contradicts itself", "plan again")


def test_a_stored_plan_with_a_number_of_400_digits_is_refused(tmp_path: Path) -> None:
    here("plan", "--model-config", GPT, "--memory", "16GiB", "--output", "out", cwd=tmp_path)
    path = tmp_path / "out" / "plan.json"
    found = json.loads(path.read_text())
    found["workers"][0]["memory"] = 10**400
    path.write_text(json.dumps(found))
    done = here("plan", "--read", "out/plan.json", "--output", "shown", cwd=tmp_path)
    refused(done, "the plan contradicts itself", "plan again")


def test_the_longest_length_is_the_model_s_own_by_default(tmp_path: Path) -> None:
    done = here("plan", "--model-config", GPT, "--memory", "16GiB", cwd=tmp_path)
    assert "requests of 131,072 tokens" in done.out


def test_every_option_reaches_the_plan(tmp_path: Path) -> None:
    options = {
        "max_len": 4096,
        "block_size": 32,
        "kernel_block_size": 16,
        "num_blocks": 5000,
        "max_batch_tokens": 1024,
        "max_requests": 8,
        "drafts": 2,
        "max_unit": 32,
        "prefix_cache_state_budget": 3,
        "state_pool": "separate",
    }
    flags = [
        part
        for name, value in options.items()
        for part in (f"--{name.replace('_', '-')}", str(value))
    ]
    done = here(
        "plan", "--model-config", str(CONFIGS), *flags, "--memory", "20GiB,24GiB",
        "--pipeline-parallel", "2", "--tensor-parallel", "2", "--no-hybrid-groups",
        "--kv-dtype", "fp8", "--output", "out", cwd=_with_config(tmp_path, "qwen3_next_80b_a3b"),
    )  # fmt: skip
    assert done.code == 2, "the folder of all configs has no config.json"
    done = here(
        "plan", "--model-config", ".", *flags, "--memory", "20GiB,24GiB",
        "--pipeline-parallel", "2", "--tensor-parallel", "2", "--no-hybrid-groups",
        "--kv-dtype", "fp8", "--output", "out", cwd=tmp_path,
    )  # fmt: skip
    assert done.code == 0, done.err
    plan = read_plan((tmp_path / "out" / "plan.json").read_bytes())
    assert {name: getattr(plan.settings, name) for name in options} == options
    assert plan.settings.memory == (20 * 2**30, 24 * 2**30)
    assert plan.settings.hybrid_groups is False
    assert plan.tensor_parallel == 2
    keys = [view for worker in plan.workers for view in worker.views if view.part == "k"]
    assert {(view.heads, view.dtype) for view in keys} == {(1, "fp8")}
    assert plan.num_blocks == 5000
    assert plan.cache_config().state_pool == "separate"


def _with_config(folder: Path, name: str) -> Path:
    (folder / "config.json").write_text((CONFIGS / f"{name}.json").read_text())
    return folder


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ((), "no model to plan for", "--model-config config.json"),
        (("--model-config", "none.json"), "the model 'none.json'", "give a config.json"),
        (("--model-config", LLAMA), "no memory to plan", "--memory 64GiB"),
        (("--model-config", LLAMA, "--memory", "64 parsecs"), "'64 parsecs' is not", "64GiB"),
        (("--model-config", LLAMA, "--memory", "1GiB,2GiB"), "2 sizes of memory for 1", "one size"),
        (
            ("--model-config", LLAMA, "--memory", "1GiB", "--block-size", "48",
             "--kernel-block-size", "32"),
            "kernel_block_size 32 must divide block_size 48; legal choices: 1, 2,", "plan --help",
        ),
        (
            ("--model-config", LLAMA, "--memory", "1GiB"),
            "131,072 tokens needs 16.01 GiB on a worker, 1.00 GiB are available; "
            "the longest length that fits is 8,128", "raise memory, lower max_len",
        ),
        (("--read", LLAMA), "this is no plan", "kvproof plan"),
        (
            ("--model-config", LLAMA, "--memory", "64GiB", "--tensor-parallel", "3"),
            "8 heads of 'k' cannot be split over 3 ranks", "divides 8",
        ),
        (
            ("--model-config", LLAMA, "--memory", "64GiB", "--tensor-parallel", "0"),
            "tensor_parallel 0 must be at least 1", "for example",
        ),
        (
            ("--model-config", LLAMA, "--memory", "64GiB", "--kv-dtype", "fp4"),
            "kv dtype 'fp4' is not known", "bfloat16",
        ),
    ],
)  # fmt: skip
def test_bad_input_is_refused(
    arguments: tuple[str, ...], message: str, hint: str, tmp_path: Path
) -> None:
    refused(here("plan", *arguments, cwd=tmp_path), message, hint)


@pytest.mark.parametrize("text", ["", "{", "[]", "\ud800", '{"model_type": 3}', "{}"])
def test_a_file_that_is_no_config_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(text.encode(errors="surrogatepass"))
    refused(here("plan", "--model-config", ".", "--memory", "1GiB", cwd=tmp_path), "")


def test_an_unknown_family_is_told_the_known_ones(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt5"}))
    done = here("plan", "--model-config", ".", "--memory", "1GiB", cwd=tmp_path)
    refused(done, "model_type 'gpt5' is not known", "llama")


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    here("plan", "--model-config", LLAMA, "--memory", "64GiB", "--output", "out", cwd=tmp_path)
    path = tmp_path / "out" / "plan.json"
    stored: dict[str, Any] = json.loads(path.read_text())
    stored["model"] = stored["notes"] = "<script>alert(1)</script>[red]\x1b[31m"
    stored["notes"] = [stored["model"]]
    path.write_text(json.dumps(stored))
    done = here("plan", "--read", "out/plan.json", "--output", "out", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "\x1b" not in done.out
    page = (tmp_path / "out" / "plan.html").read_text()
    assert "<script" not in page
    assert "\x1b" not in page


def test_an_output_that_cannot_be_written_is_refused_before_the_plan_is_printed(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()
    words = ("plan", "--model-config", LLAMA, "--memory", "64GiB", "--output", "file/out")
    done = here(*words, cwd=tmp_path)
    refused(done, "cannot write 'file/out/plan.json'", "--output")
    assert not done.out
