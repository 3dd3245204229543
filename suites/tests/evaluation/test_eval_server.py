"""Servers that a run starts: awaited, watched, and stopped with everything they started."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvproof.eval.run.config import Configuration, EvalConfig, Protocol, Server
from kvproof.eval.run.records import ServerDied, ServerRecord
from kvproof.eval.run.runner import ConfigurationRun, evaluate
from kvproof.eval.run.server import free_port, serving
from kvproof.harness.errors import UsageError
from kvproof.harness.isolation.supervised import Died, Supervised
from kvproof.suites.tests.evaluation.eval_kit import SMALL, Kept, configuration, small_material
from kvproof.suites.tests.evaluation.eval_server import scripted
from kvproof.suites.tests.patience import LONG, until

MODULE = "kvproof.suites.tests.evaluation.eval_server"


def launched(*scripts: dict[str, Any], within: float = 60.0, **server: Any) -> EvalConfig:
    """A started server for each script, the second one the control."""
    launch = ("{python}", "-m", MODULE, "{port}", "{script}")
    names = ["off", "off again", "on"]
    made = [
        Configuration(
            name=name,
            control=name == "off again",
            prefix_cache=script.get("cache", True),
            settings={"script": json.dumps(script)},
        )
        for name, script in zip(names, scripts, strict=True)
    ]
    return EvalConfig(
        protocol=Protocol(retries=0, timeout=LONG, concurrency=1),
        server=Server(launch=launch, ready_within=within, **server),
        configuration=tuple(made),
    )


def one(script: dict[str, Any], **server: Any) -> tuple[EvalConfig, Configuration]:
    config = launched(script, script, script, **server)
    return config, config.configuration[0]


def opened(config: EvalConfig, which: Configuration, log: Path) -> None:
    with serving(config, which, log):
        raise AssertionError("it never was ready")


def commands() -> Iterator[list[str]]:
    """Process group and command of all processes that are not zombies."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                line = (folder / "cmdline").read_bytes().decode().split("\0")
                group = (folder / "stat").read_text().rpartition(")")[2].split()[2]
            except OSError:
                continue
            if state != "Z":
                yield [group, *line]


@pytest.mark.parametrize("late", [0.0, 0.4])
def test_a_started_server_is_awaited_and_stopped(tmp_path: Path, late: float) -> None:
    config, off = one({"late": late, "child": True, "models": ["m1", "m2"]})
    with serving(config, off, tmp_path / "log") as server:
        assert server.models == ("m1", "m2")
        assert server.fresh
        assert server.command[:3] == (sys.executable, "-m", MODULE)
        server.check()
        port = server.command[3]
        group = next(line[0] for line in commands() if MODULE in line and port in line)
        assert [line[1] for line in commands() if line[0] == group and line[1] == "sleep"]
    # a killed process is listed until it has run once more
    until(lambda: not any(line[0] == group for line in commands()))


def test_a_server_has_time_to_end_in_order(tmp_path: Path) -> None:
    ended, log = tmp_path / "ended", tmp_path / "log"
    end = f"sleep 0.3; echo in order > {ended}; exit 0"
    script = f"trap '{end}' TERM; echo ready; while :; do sleep 0.05; done"
    with Supervised(["sh", "-c", script], log) as process:
        while "ready" not in log.read_text():
            assert process.code is None
            time.sleep(0.02)
    assert ended.read_text() == "in order\n"


def test_a_server_that_never_gets_ready_is_given_up(tmp_path: Path) -> None:
    config, off = one({"late": 99}, within=0.8)
    with pytest.raises(Died, match=r"not ready within 0\.8 s"):
        opened(config, off, tmp_path / "log")


def test_a_server_that_ends_at_once_leaves_its_log(tmp_path: Path) -> None:
    config, off = one({"no_such_setting": 1})
    with pytest.raises(Died, match="the server ended with code 1") as caught:
        opened(config, off, tmp_path / "log")
    assert "no_such_setting" in caught.value.log


def test_a_command_that_does_not_exist_is_named(tmp_path: Path) -> None:
    config = EvalConfig(
        server=Server(launch=("no-such-engine",)), configuration=(configuration("a"),) * 2
    )
    with pytest.raises(UsageError, match="cannot start 'no-such-engine'"):
        opened(config, config.baseline, tmp_path / "log")


def test_the_key_comes_from_its_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, off = one({}, api_key_env="KVPROOF_TEST_KEY")
    with pytest.raises(UsageError, match="KVPROOF_TEST_KEY with the server's key is not set"):
        opened(config, off, tmp_path / "log")
    monkeypatch.setenv("KVPROOF_TEST_KEY", "s3cret")
    with serving(config, off, tmp_path / "log") as server:
        assert server.models == ("reader",)


def test_a_running_server_is_reset_where_it_can_be(tmp_path: Path) -> None:
    with scripted() as running:
        running.blocks.add(1)
        for reset in ("", "/reset"):
            config = EvalConfig(
                server=Server(base_url=running.url, reset=reset),
                configuration=(configuration("a"), configuration("b")),
            )
            with serving(config, config.baseline, tmp_path / "log") as server:
                assert server.fresh == bool(reset)
            assert bool(running.blocks) != bool(reset)


@pytest.mark.parametrize(
    ("reported", "models"),
    [
        ("OK", ()),
        ("", ()),
        ("[" * 20_000, ()),
        ('{"data": 1}', ()),
        ('{"data": [{"id": "m"}]}', ("m",)),
    ],
)
def test_any_200_says_that_a_server_is_ready(
    tmp_path: Path, reported: str, models: tuple[str, ...]
) -> None:
    with scripted(health=reported) as running:
        config = EvalConfig(
            server=Server(base_url=running.url, health="/health"),
            configuration=(configuration("a"), configuration("b")),
        )
        with serving(config, config.baseline, tmp_path / "log") as server:
            assert server.models == models


def test_a_server_that_is_loading_is_not_ready(tmp_path: Path) -> None:
    with scripted(late=60.0) as running:
        config = EvalConfig(
            server=Server(base_url=running.url),
            configuration=(configuration("a"), configuration("b")),
        )
        with pytest.raises(UsageError, match="does not answer: GET /v1/models gave 503"):
            opened(config, config.baseline, tmp_path / "log")


def test_a_server_that_dies_costs_its_own_samples_only(tmp_path: Path) -> None:
    config = launched({"cache": False}, {"cache": False}, {"dies_at": 20})
    kept, count = Kept(), SMALL.samples
    with small_material(tmp_path / "data") as found:
        evaluate(config, found, kept.outlet(tmp_path))
        death = next(each for each in kept.records if isinstance(each, ServerDied))
        assert (death.configuration, death.message) == ("on", "the server ended with code 7")
        of_on = [each for each in kept.samples if each.configuration == "on"]
        assert [each.outcome for each in of_on] == ["answered"] * 20
        assert len(kept.samples) == 2 * 3 * count + 20
        healthy = launched({"cache": False}, {"cache": False}, {})
        evaluate(healthy, found, kept.outlet(tmp_path), earlier=list(kept.records))
    assert len(kept.samples) == 3 * 3 * count
    assert len([each for each in kept.records if isinstance(each, ServerRecord)]) == 4
    warm = [each.cached_share or 0 for each in kept.of("on", "warm")]
    assert min(warm) > 0.97


def test_ports_are_free() -> None:
    assert 0 < free_port() < 1 << 16


@pytest.mark.parametrize(
    ("given", "asked"), [("", "m1"), ("m2", "m2"), ("folders/of/m1", "m1"), (None, "m3")]
)
def test_a_folder_in_the_command_is_asked_for_by_the_name_it_is_served_under(
    tmp_path: Path, given: str | None, asked: str
) -> None:
    """Only a running server's name is taken as it is given, for it may serve more than it lists."""
    names: list[str] = []

    def runner(turn: ConfigurationRun) -> int:
        names.append(turn.model)
        return 0

    script = {"models": ["m1", "m2"]}
    with small_material(tmp_path) as found, scripted(models=("m1",)) as running:
        config = launched(script, script, script)
        if given is None:
            one_by_one = [msgspec.structs.replace(c, server=Server(base_url=running.url))
                          for c in config.configuration]  # fmt: skip
            config = msgspec.structs.replace(config, configuration=tuple(one_by_one))
        config = msgspec.structs.replace(config, model="m3" if given is None else given)
        evaluate(config, found, Kept().outlet(tmp_path), runner=runner)
    assert names == [asked] * 3
