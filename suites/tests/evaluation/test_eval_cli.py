"""`kvproof eval`: the command, its reports, its exit codes, and going on where it was killed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from kvproof.eval.benchmark.data import DataSet
from kvproof.eval.benchmark.prompts import own_prompts
from kvproof.eval.run.generator import GeneratorOptions, generate, write_generated
from kvproof.eval.run.records import read_eval
from kvproof.suites.tests.cli.cli_kit import (
    Done,
    Started,
    here,
    nothing_is_left_of,
    refused,
    started,
)
from kvproof.suites.tests.evaluation.eval_server import Server, scripted

CONFIG = """
[protocol]
retries = 0
timeout = 300
control_concurrency = 1
[judge]
margin = 0.25
[server]
reset = "/reset"
[[configuration]]
name = "off"
prefix_cache = false
[[configuration]]
name = "off again"
control = true
[[configuration]]
name = "on"
"""
COUNT = 12
ALL = 3 * 3 * COUNT


@contextmanager
def servers(**on: Any) -> Iterator[tuple[Server, Server]]:
    with ExitStack() as stack:
        off = stack.enter_context(scripted(cache=False))
        yield off, stack.enter_context(scripted(**on))


def prepared(folder: Path, text: str = CONFIG) -> None:
    (folder / "config.toml").write_text(text)
    write_generated(folder, GeneratorOptions(samples=COUNT, max_tokens=2000))


def arguments(off: Server, on: Server, *more: str) -> list[str]:
    urls = [f"off={off.url}", f"off again={off.url}", f"on={on.url}"]
    return ["eval", "longbench-v2", "--config", "config.toml", "--data", "data.json", "--shared",
            "shared.json", *(part for url in urls for part in ("--url", url)), *more]  # fmt: skip


def ran(folder: Path, off: Server, on: Server, *more: str) -> Done:
    return here(*arguments(off, on, *more), "--output", "run", cwd=folder)


def test_equal_configurations_pass_and_leave_all_reports(tmp_path: Path) -> None:
    prepared(tmp_path)
    with servers() as (off, on):
        done = ran(tmp_path, off, on)
    assert done.code == 0, done
    assert " PASS  no difference beyond the control pair" in done.out
    assert max(map(len, tables_of(done.out))) <= 80
    found = json.loads((tmp_path / "run" / "comparison.json").read_text())
    assert [row["verdict"] for row in found["comparison"]["rows"]] == ["pass"] * 7
    assert len(read_eval(tmp_path / "run").samples) == ALL
    text = (tmp_path / "run" / "report.md").read_text()
    assert "| on | warm | 12/12 | 100.0 % | 75.8 to 100.0 | 0 | 0 | 12/12 |" in text
    well_formed((tmp_path / "run" / "report.html").read_text())


def tables_of(out: str) -> list[str]:
    """Lines of the tables, after those of the progress."""
    lines = out.splitlines()
    return lines[lines.index("Accuracy") : lines.index("Comparison") + 8]


def well_formed(page: str) -> None:
    """Every element is closed, and nothing is loaded from anywhere."""
    open_: list[str] = []

    class Parser(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            assert tag != "script"
            assert "src" not in dict(attrs)
            assert (dict(attrs).get("href") or "#").startswith("#")
            if tag not in ("meta", "rect", "line", "path"):
                open_.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert open_.pop() == tag

    Parser().feed(page)
    assert open_ == []


def test_wrong_blocks_fail_with_the_ids_of_what_flipped(tmp_path: Path) -> None:
    prepared(tmp_path)
    with servers(stale=True) as (off, on):
        done = ran(tmp_path, off, on)
    assert done.code == 1
    assert " FAIL  on does not answer like off" in done.out
    lost = [
        each["id"]
        for row in json.loads((tmp_path / "run" / "comparison.json").read_text())["comparison"][
            "rows"
        ]
        for each in row["flips"]
    ]
    assert len(lost) > 8
    for name in ("report.md", "report.html"):
        text = (tmp_path / "run" / name).read_text()
        assert all(each in text for each in lost)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ({"cache": False}, "on: only 0 of 12 samples hit the cache"),
        ({"usage": "none"}, "on: the server does not tell how many tokens were cached"),
        ({"usage": 10**9}, "on: the server does not tell how many tokens were cached"),
        ({"faults": {14: "400"}}, "on: 1 of 12 samples without an answer"),
        ({"faults": {5: "drop"}}, "on: 1 of 12 samples without an answer"),
    ],
)
def test_what_shows_nothing_is_inconclusive(
    tmp_path: Path, script: dict[str, Any], reason: str
) -> None:
    prepared(tmp_path)
    with servers(**script) as (off, on):
        done = ran(tmp_path, off, on)
    assert done.code == 3, done
    assert reason in " ".join(done.out.split())
    assert "INCONCLUSIVE" in done.out
    assert len(read_eval(tmp_path / "run").samples) == ALL


def test_a_complete_run_is_only_rendered_again(tmp_path: Path) -> None:
    prepared(tmp_path)
    with servers() as (off, on):
        first = ran(tmp_path, off, on)
        asked = len(on.prompts)
        again = ran(tmp_path, off, on)
        assert len(on.prompts) == asked
    assert again.code == first.code == 0
    report = here("report", "run", cwd=tmp_path)
    assert (report.code, "PASS" in report.out) == (0, True)


def test_another_command_does_not_continue_a_run(tmp_path: Path) -> None:
    prepared(tmp_path)
    with servers() as (off, on):
        ran(tmp_path, off, on)
        (tmp_path / "config.toml").write_text(CONFIG.replace("retries = 0", "max_tokens = 9"))
        done = ran(tmp_path, off, on)
    refused(done, "conditions.max_tokens was 128 and is 9", "repeat that very command")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_ended_goes_on_with_the_same_command(
    tmp_path: Path, how: signal.Signals
) -> None:
    prepared(tmp_path)
    with servers(faults={17: "slow"}) as (off, on):
        with started(*arguments(off, on), cwd=tmp_path) as running:
            running.until(lambda: len(on.prompts) > 17)
            done = running.send(how)
            nothing_is_left_of(running)
        assert done.code == (-9 if how == signal.SIGKILL else 130), done
        before = read_eval(tmp_path / "record").samples
        assert ALL * 2 / 3 < len(before) < ALL
        shown = here("report", "record", cwd=tmp_path)
        assert (shown.code, "off again" in shown.out, "Accuracy" in shown.out) == (0, True, True)
        again = here(*arguments(off, on), "--output", "record", cwd=tmp_path)
        assert again.code == 0, again
    samples = read_eval(tmp_path / "record").samples
    assert samples[: len(before)] == before
    assert len({(e.configuration, e.phase, e.number) for e in samples}) == len(samples) == ALL


def test_ctrl_c_ends_the_servers_that_were_started(tmp_path: Path) -> None:
    with waiting_for_a_server(tmp_path) as running:
        done = running.send(signal.SIGINT)
        nothing_is_left_of(running, *servers_of(tmp_path))
    assert done.code == 130
    assert "goes on from there" in done.out


def test_a_run_that_is_killed_leaves_no_server(tmp_path: Path) -> None:
    with waiting_for_a_server(tmp_path) as running:
        left = servers_of(tmp_path)
        assert len(left) == 2  # the server and its keeper
        assert running.send(signal.SIGKILL).code == -9
        try:
            nothing_is_left_of(running, *left)
        finally:
            for each in left:
                with suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)


def test_a_server_that_dies_fails_the_run_until_it_is_made_good(tmp_path: Path) -> None:
    """This one serves twenty requests; with those it has lost it takes three of them."""
    text = CONFIG.replace("[protocol]", "[protocol]\nconcurrency = 1").replace(
        'name = "on"',
        f"""name = "on"
[configuration.server]
launch = ["{{python}}", "-m", "{SERVER}", "{{port}}", '{{"dies_at": 20}}']""",
    )
    prepared(tmp_path, text)
    with scripted(cache=False) as off:
        line = arguments(off, off)[:-2]  # no address of the third one
        first, second, third = (here(*line, "--output", "run", cwd=tmp_path) for _ in range(3))
    assert (first.code, second.code, third.code) == (1, 1, 0)
    assert "on: the server ended with code 7" in first.out
    assert " FAIL  the server of on died" in first.out
    assert "died" not in third.out


SERVER = "kvproof.suites.tests.evaluation.eval_server"


@contextmanager
def waiting_for_a_server(folder: Path) -> Iterator[Started]:
    """The third configuration is never ready; its command names the folder, to be found."""
    text = CONFIG.replace(
        'reset = "/reset"',
        'launch = ["{python}", "-m", "kvproof.suites.tests.evaluation.eval_server", '
        '"{port}", "{script}"]',
    ).replace("prefix_cache = false", "prefix_cache = false\nsettings = { script = '{}' }")
    never = json.dumps({"late": 99, "models": [str(folder)]})
    text = text.replace('name = "on"', f"name = \"on\"\nsettings = {{ script = '{never}' }}")
    prepared(folder, text)
    command = ["eval", "longbench-v2", "--config", "config.toml", "--data", "data.json"]
    with started(*command, cwd=folder) as running:
        running.until(lambda: len(servers_of(folder)) == 2)
        yield running


def servers_of(folder: Path) -> list[int]:
    """Processes whose command names the folder."""
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            with suppress(OSError):
                if f'["{folder}"]'.encode() in (each / "cmdline").read_bytes():
                    found.append(int(each.name))
    return found


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--data", "none.json"], "cannot read 'none.json'"),
        (["--prompts", "nowhere"], "cannot read the prompt 'nowhere/0shot.txt'"),
        (["--cot"], "--cot without --prompts"),
        (["--prompts", "nowhere", "--cot"], "cannot read the prompt 'nowhere/0shot_cot.txt'"),
        (["--url", "on"], "--url 'on' has no name"),
        (["--url", "onn=http://x/v1"], "there is no configuration 'onn'"),
        (["--shared", "few.json"], "11 further questions for 12 samples"),
        (["--shared", "other.json"], "row 0 of both files is about two documents"),
    ],
)
def test_bad_input_is_refused_before_anything_is_asked(
    tmp_path: Path, more: list[str], message: str
) -> None:
    prepared(tmp_path)
    (tmp_path / "few.json").write_text(json.dumps(rows(tmp_path)[1:]))
    (tmp_path / "other.json").write_text(json.dumps(rows(tmp_path)[::-1]))
    with servers() as (off, on):
        line = arguments(off, on)
        if more[0] in ("--data", "--shared"):
            line[line.index(more[0]) + 1] = more[1]
        else:
            line += more
        refused(here(*line, "--output", "run", cwd=tmp_path), message)
        assert on.prompts == off.prompts == []
    assert not (tmp_path / "run").exists()


def rows(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "shared.json").read_text())
    return found


def test_configurations_need_a_server(tmp_path: Path) -> None:
    prepared(tmp_path)
    done = here("eval", "longbench-v2", "--config", "config.toml", cwd=tmp_path)
    refused(done, "configuration 'off' needs a base_url or a launch command", '--url "off=')


READY = Path(__file__).parents[3] / "eval" / "configs" / "longbench_v2.toml"


def test_the_file_for_the_published_set_runs_on_its_format_and_two_servers(tmp_path: Path) -> None:
    """Samples, truncation, two addresses, and the power, on data.json and a 0-shot prompt."""
    text = READY.read_text().replace("samples = 96", "samples = 6").replace("= 120000", "= 3000")
    prepared(tmp_path, text.replace('"tokenizer.json"', '"bytes"'))
    prompts = tmp_path / "LongBench" / "prompts"
    prompts.mkdir(parents=True)
    (prompts / "0shot.txt").write_text(own_prompts().template)
    with servers() as (off, on):
        line = [*arguments(off, on, "--prompts", "LongBench"), "--output", "run"]
        at = line.index("--shared")
        done = here(*line[:at], *line[at + 2 :], cwd=tmp_path)
    assert done.code == 3, done  # six samples cannot exclude a loss
    found = read_eval(tmp_path / "run")
    assert {each.number for each in found.samples} == set(range(6))
    assert any(each.cut for each in found.samples)
    lines = done.out.splitlines()
    assert any("6 of 12 samples, spread evenly over the file" in each for each in lines)
    assert any("6 hits cannot show a loss" in each for each in lines)


def test_samples_of_our_own_are_the_default_and_can_be_written(tmp_path: Path) -> None:
    done = here("eval", "generate", "own", "--samples", "6", "--seed", "4", cwd=tmp_path)
    assert done.code == 0
    wanted = generate(GeneratorOptions(samples=6, seed=4)).samples
    with DataSet(tmp_path / "own" / "data.json") as data:
        assert tuple(data.sample(n) for n in range(6)) == wanted


def test_rotated_choices_stand_in_for_other_questions(tmp_path: Path) -> None:
    prepared(tmp_path)
    with servers() as (off, on):
        line = arguments(off, on, "--output", "run")
        at = line.index("--shared")
        done = here(*line[:at], *line[at + 2 :], cwd=tmp_path)
    assert done.code == 0, done
    samples = read_eval(tmp_path / "run").samples
    cold = {e.number: e.expected for e in samples if e.phase == "cold"}
    shared = {e.number: e.expected for e in samples if e.phase == "shared"}
    assert shared == {n: "BCDA"["ABCD".index(letter)] for n, letter in cold.items()}


def test_two_runs_are_compared_if_they_asked_the_same(tmp_path: Path) -> None:
    prepared(tmp_path)
    with servers() as (off, on):
        here(*arguments(off, on), "--output", "old", cwd=tmp_path)
    with servers(stale=True) as (off, on):
        here(*arguments(off, on), "--output", "new", cwd=tmp_path)
    same = here("eval", "compare", "old", "old", cwd=tmp_path)
    assert (same.code, "old off again" in same.out) == (0, True)
    worse = here("eval", "compare", "old", "new", "--output", "both", cwd=tmp_path)
    assert worse.code == 1
    assert "FAIL  new on does not answer like off" in worse.out
    well_formed((tmp_path / "both" / "report.html").read_text())
    (tmp_path / "config.toml").write_text(CONFIG.replace("retries = 0", "temperature = 0.7"))
    with servers() as (off, on):
        here(*arguments(off, on), "--output", "warmer", cwd=tmp_path)
    other = here("eval", "compare", "old", "warmer", cwd=tmp_path)
    refused(other, "the runs differ in temperature: 0.0 and 0.7", "same data, prompts, sampling")


def test_runs_of_two_models_are_not_compared(tmp_path: Path) -> None:
    prepared(tmp_path)
    for name in ("reader", "other"):
        with scripted(cache=False, models=(name,)) as off, scripted(models=(name,)) as on:
            here(*arguments(off, on), "--output", name, cwd=tmp_path)
    refused(
        here("eval", "compare", "reader", "other", cwd=tmp_path),
        "asked different models: ['reader'] and ['other']",
        "one model",
    )


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    prepared(tmp_path)
    samples = json.loads((tmp_path / "data.json").read_text())
    samples[0]["_id"] = "<script>alert(1)</script>\x1b[31m|`"
    (tmp_path / "data.json").write_text(json.dumps(samples))
    with servers(always="chatty", victim="Question") as (off, on):
        done = ran(tmp_path, off, on)
    page = (tmp_path / "run" / "report.html").read_text()
    well_formed(page)
    assert "&lt;script&gt;" in page
    assert "\x1b" not in page + done.out
    assert "&lt;script\\>" in (tmp_path / "run" / "report.md").read_text()
