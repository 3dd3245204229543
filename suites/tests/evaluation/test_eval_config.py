"""Files of configurations: what they may say, and what each ready-made one starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from cyclopts import App

from kvproof import eval as eval_package
from kvproof.eval.run.config import EvalConfig, check_servers, command, read_config, with_urls
from kvproof.harness.cli.verbs.serve import serve
from kvproof.harness.errors import UsageError
from kvproof.suites.faults.eval_server import FAULTS

READY_MADE = sorted((Path(eval_package.__file__).parent / "configs").glob("*.toml"))

PAIR = """
[[configuration]]
name = "off"
prefix_cache = false
settings = { block = 16 }
arguments = ["--off"]

[[configuration]]
name = "off again"
control = true
"""

WHOLE = PAIR + '\n[[configuration]]\nname = "on"\n'


def read(folder: Path, text: str) -> EvalConfig:
    path = folder / "config.toml"
    path.write_text(text)
    return read_config(path)


def test_defaults_are_those_of_the_documentation(tmp_path: Path) -> None:
    found = read(tmp_path, WHOLE)
    assert found.protocol.phases == ("cold", "warm", "shared")
    assert (found.protocol.temperature, found.protocol.max_tokens) == (0.0, 128)
    assert (found.judge.rule, found.judge.alpha, found.judge.min_hits) == ("answers", 0.05, 0.9)
    assert (found.protocol.concurrency, found.protocol.control_concurrency) == (8, 4)
    assert found.baseline.name == "off"
    assert found.control.name == "off again"
    assert [each.name for each in found.others] == ["on"]


def test_a_control_repeats_the_first_configuration(tmp_path: Path) -> None:
    found = read(tmp_path, WHOLE)
    base, control = found.baseline, found.control
    assert (control.prefix_cache, control.settings, control.arguments) == (
        base.prefix_cache,
        base.settings,
        base.arguments,
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x", "Expected '=' after a key"),
        ("[[configuration]]\nname = 'a'", r"length >= 2 - at `\$\.configuration`"),
        (PAIR, "compares nothing"),
        (WHOLE + "[judge]\nalpha = 0.7", r"float` < 0\.5 - at `\$\.judge\.alpha`"),
        (WHOLE + "[protocol]\norder = 'odd'", r"'odd' - at `\$\.protocol\.order`"),
        (WHOLE + "[protocol]\nconcurency = 2", "unknown field `concurency`"),
        (WHOLE + "[protocol]\nconcurrency = 0", r">= 1 - at `\$\.protocol\.concurrency`"),
        (WHOLE + "[protocol]\nphases = ['warm', 'cold']", "do not begin cold"),
        (WHOLE + "[protocol]\nphases = ['shared']", "do not begin cold"),
        (WHOLE + "[protocol]\nphases = ['cold', 'hot']", "'hot'"),
        (WHOLE + "\n[[configuration]]\nname = 'on'", "two configurations 'on'"),
        (WHOLE + "\n[[configuration]]\nname = 'c'\ncontrol = true", "2 control configurations"),
        (WHOLE.replace("control = true", ""), "0 control configurations"),
        (WHOLE.replace('"on"', '"../on"'), "matching regex"),
        (WHOLE.replace("control = true", "control = true\narguments = ['x']"), "settings of its"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        read(tmp_path, text)
    assert "config.toml" in str(caught.value)
    assert caught.value.hint


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.toml.*No such file"):
        read_config(tmp_path / "none.toml")


def test_commands_are_filled_in(tmp_path: Path) -> None:
    text = 'model = "m"\n[server]\nlaunch = ["run", "--p={port}", "{model}", "{block}"]\n' + PAIR
    found = read(tmp_path, text + "\n[[configuration]]\nname = 'on'\nsettings = {block = true}")
    lines = [command(found, each, port=7) for each in found.configuration]
    assert lines[0] == ["run", "--p=7", "m", "16", "--off"] == lines[1]
    assert lines[2] == ["run", "--p=7", "m", "true"]
    check_servers(found)


@pytest.mark.parametrize(
    ("launch", "message"),
    [
        ('["x", "{model}"]', r"'off': nothing fills \{model\}"),
        ('["x", "{pages}"]', r"'off': nothing fills \{pages\}"),
        ("[]", "'off' needs a base_url or a launch command"),
        ('["x"]\nbase_url = "http://x/v1"', "'off' needs a base_url or a launch command"),
    ],
)
def test_what_cannot_be_started_is_refused_before_anything_runs(
    tmp_path: Path, launch: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        check_servers(read(tmp_path, f"[server]\nlaunch = {launch}\n{WHOLE}"))


def test_running_servers_take_the_place_of_commands(tmp_path: Path) -> None:
    found = read(tmp_path, f'[server]\nlaunch = ["x"]\nready_within = 5\n{WHOLE}')
    changed = with_urls(found, {each.name: "http://h:1/v1" for each in found.configuration})
    servers = [changed.server_of(each) for each in changed.configuration]
    assert [(s.base_url, s.launch, s.ready_within) for s in servers] == 3 * [
        ("http://h:1/v1", (), 5),
    ]
    with pytest.raises(UsageError, match="no configuration 'onn'"):
        with_urls(found, {"onn": "http://h:1/v1"})


def test_a_running_server_alone_says_which_ones_are_missing(tmp_path: Path) -> None:
    found = read(tmp_path, f'[server]\nlaunch = ["x"]\n{WHOLE}')
    with pytest.raises(UsageError, match="names 'on'; 'off', 'off again' are missing") as caught:
        with_urls(found, {"on": "http://h:1/v1"})
    assert '--url "off=http' in caught.value.hint
    own = WHOLE + '[configuration.server]\nlaunch = ["y"]\n'
    both = {"off": "http://h:1/v1", "off again": "http://h:1/v1"}
    with_urls(read(tmp_path, own), both)  # a command of its own is meant


def test_there_are_ready_made_files() -> None:
    assert [path.stem for path in READY_MADE] == [
        "checkpoints",
        "divergence",
        "divergence_faults",
        "divergence_vllm",
        "faults",
        "kernel_block",
        "longbench_v2",
        "mrcr",
        "prefix_cache",
        "probe",
        "ruler",
        "scbench",
        "state_pool",
    ]


@pytest.mark.parametrize("path", READY_MADE, ids=lambda path: path.stem)
def test_ready_made_files_start_commands_that_exist(path: Path) -> None:
    """Every option of theirs is one of `kvproof serve`, with a value that it takes."""
    found = read_config(path)
    app = App(result_action="return_value")
    app.default(serve)
    if not found.server.launch:
        check_servers(found)  # it names running ones
        return
    for each in found.configuration:
        line = command(EvalConfig(model="m", server=found.server,
                                  configuration=found.configuration), each, port=9)  # fmt: skip
        if path.stem.endswith("faults"):
            assert line[1:3] == ["-m", "kvproof.suites.faults.eval_server"]
            assert line[3] in FAULTS
            line = ["kvproof", *line[4:]]
        if path.stem.endswith("vllm"):
            switch = (
                "--enable-prefix-caching" if each.prefix_cache else "--no-enable-prefix-caching"
            )
            assert (line[:3], line[-1]) == (["vllm", "serve", "m"], switch)
            continue
        assert Path(line[0]).name == "kvproof"
        assert line[1] == "serve"
        _, bound, _ = app.parse_args(line[2:], exit_on_error=False, print_error=False)
        options = bound.arguments["options"]
        assert (options.model, options.port) == ("m", 9)
        assert options.enable_prefix_caching == each.prefix_cache
