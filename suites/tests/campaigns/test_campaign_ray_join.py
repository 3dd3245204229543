"""Joining a Ray cluster, or starting one: announced, on the loopback address, with the reason."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest

from kvproof.harness.campaign import ray_pool
from kvproof.harness.errors import UsageError

JOIN = """
import os
from contextlib import suppress
from pathlib import Path
from kvproof.harness.campaign.ray_pool import connect
ray = connect("auto")
assert ray.get(ray.remote(lambda: 2).options(num_cpus=1).remote(), timeout=60) == 2
parents = {}
for stat in Path("/proc").glob("[0-9]*/stat"):
    parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
def ours(pid):
    return pid == os.getpid() or (pid in parents and ours(parents[pid]))
inodes = set()
for pid in filter(ours, parents):
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            inodes.add(os.readlink(link))
for table in ("tcp", "tcp6"):
    for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == "0A" and f"socket:[{words[9]}]" in inodes:
            print(words[1].partition(":")[0])
"""
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
"""127.0.0.1, the same in IPv6, and ::1, as in /proc/net."""


class FakeRay:
    def __init__(self, *errors: Exception | None) -> None:
        self.errors = list(errors)
        self.calls: list[dict[str, Any]] = []

    def is_initialized(self) -> bool:
        return False

    def init(self, **options: Any) -> None:
        self.calls.append(options)
        if error := self.errors.pop(0):
            raise error


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    constants = SimpleNamespace(ENABLE_RAY_CLUSTER=True, ENABLE_RAY_CLUSTERS_ENV_VAR="X_RAY")
    modules = {"ray": fake, "ray._private.ray_constants": constants}
    monkeypatch.setattr(ray_pool, "import_module", modules.__getitem__)
    monkeypatch.setattr(ray_pool, "find_spec", lambda _: True)
    monkeypatch.setenv("X_RAY", "1")
    return fake


def test_a_new_cluster_is_announced(ray: FakeRay, capsys: pytest.CaptureFixture[str]) -> None:
    ray.errors = [ConnectionError(f"{ray_pool._NONE}. Please specify one."), None]
    ray_pool.connect("auto")
    assert "starting one on 127.0.0.1" in capsys.readouterr().err
    assert [call["address"] for call in ray.calls] == ["auto", "local"]
    assert os.environ["X_RAY"] == "0"


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("Failed to connect to Ray cluster at 10.0.0.5:6379"),
        RuntimeError("Version mismatch: The cluster was started with:\n  Ray: 2.1"),
        PermissionError("Authentication token is missing"),
    ],
)
def test_a_cluster_that_refuses_is_named_with_its_reason(
    ray: FakeRay, error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    ray.errors = [error]
    with pytest.raises(UsageError, match="cannot be joined") as refused:
        ray_pool.connect("auto")
    assert " ".join(str(error).split()) in str(refused.value)
    assert "RAY_AUTH_TOKEN" in refused.value.hint
    assert len(ray.calls) == 1
    assert capsys.readouterr().err == ""


def test_a_new_cluster_that_cannot_start_is_named(ray: FakeRay) -> None:
    ray.errors = [ConnectionError(ray_pool._NONE), RuntimeError("no space in /tmp/ray")]
    with pytest.raises(UsageError, match="no space in /tmp/ray"):
        ray_pool.connect("auto")


@pytest.mark.slow(reason="starts a Ray cluster")
@pytest.mark.skipif(find_spec("ray") is None, reason="pip install 'kvproof[ray]'")
@pytest.mark.parametrize("mode", ["disabled", "token"])
def test_no_other_machine_reaches_a_new_cluster(mode: str, tmp_path: Any) -> None:
    variables = {**os.environ, "RAY_AUTH_MODE": mode, "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", JOIN], env=variables, capture_output=True, text=True, check=False,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done
    listening = set(done.stdout.split())
    assert listening
    assert listening <= LOOPBACK
