"""What hangs or stays behind in a user's own target: its import, `__init__`, `close`, a daemon."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvproof.harness.contract.target import TargetConfig
from kvproof.harness.errors import TargetDied
from kvproof.harness.isolation.registry import OwnTargets, open_handle
from kvproof.harness.isolation.supervised import Supervised
from kvproof.harness.isolation.worker_handle import WorkerHandle
from kvproof.suites.tests.cli.cli_kit import here
from kvproof.suites.tests.patience import until

MADE = "from kvproof.harness.adapters.reference.target import make_target as made\n"
HANGS = {
    "import": "import time\ntime.sleep(1000)\n",
    "__init__": "import time\ndef make_target(config):\n    time.sleep(1000)\n",
    "close": MADE + "import time\ndef make_target(config):\n    target = made(config)\n"
    "    target.close = lambda: time.sleep(1000)\n    return target\n",
}
DAEMON = """\
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open({pid!r} + ".part", "w").write(str(os.getpid()))
        os.rename({pid!r} + ".part", {pid!r})
        os.closerange(0, 1000)
        os.environ.clear()
        time.sleep(1000)
    os._exit(0)
os.wait()
"""
BUSY = "time.sleep(1000)"


@pytest.fixture(autouse=True)
def _at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("part", HANGS)
def test_what_hangs_at_the_start_has_a_limit_and_is_named(
    tmp_path: Path, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hangs.py").write_text(HANGS[part])
    said: list[str] = []
    monkeypatch.setattr(WorkerHandle, "waiting", staticmethod(said.append))
    own = OwnTargets(start=6.0)
    with (
        open_handle("hangs:make_target", options=own) as handle,
        pytest.raises(TargetDied, match=rf"no answer to .*{part}.* within 6 s \(--worker-start\)"),
    ):
        _ = handle.profile
    assert part in said[-1], "on a slow machine the import is waited for, too"
    assert "6 s at most" in said[-1]


def test_the_command_names_the_call_that_it_waits_for(tmp_path: Path) -> None:
    (tmp_path / "hangs.py").write_text(HANGS["import"])
    words = ("run", "--target", "hangs:make_target", "--budget", "debug", "--worker-start", "4s")
    done = here(*words, "--output", "out", cwd=tmp_path)
    assert done.code == 1
    assert "no answer to import within 4 s" in done.out


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Path]:
    """The file of the id of a process that has left its session, its parent and its environment."""
    pid = tmp_path / "pid"
    yield pid
    if pid.exists() and alive(pid):
        os.kill(int(pid.read_text()), signal.SIGKILL)


def alive(pid: Path) -> bool:
    try:
        state = (
            Path("/proc", pid.read_text() or "none", "stat")
            .read_text()
            .rpartition(")")[2]
            .split()[0]
        )
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.parametrize("end", ["closed", "crashed"])
def test_a_daemon_of_a_target_ends_with_its_worker(tmp_path: Path, daemon: Path, end: str) -> None:
    crash = "    os.abort()\n" if end == "crashed" else "    return made(config)\n"
    text = MADE + DAEMON.format(pid=str(daemon)) + "def make_target(config):\n"
    (tmp_path / "forks.py").write_text(text + crash)
    with open_handle("forks:make_target") as handle:
        if end == "closed":
            handle.create(TargetConfig(num_blocks=8, block_size=4)).close()
            until(lambda: alive(daemon), "the daemon never started")
        else:
            with pytest.raises(TargetDied, match="SIGABRT"):
                _ = handle.profile
    until(lambda: not alive(daemon), "the daemon is still there")


def test_a_daemon_of_a_server_ends_with_it(tmp_path: Path, daemon: Path) -> None:
    (tmp_path / "server.py").write_text(DAEMON.format(pid=str(daemon)) + BUSY)
    with Supervised(["python3", "server.py"], tmp_path / "log") as server:
        until(daemon.exists, server.log_tail())
    until(lambda: not alive(daemon), "the daemon is still there")
