"""How the recorder gets into a process, and what it does beside an engine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from kvproof.harness.recorder import boot_folder, hooks, import_hook, sglang
from kvproof.harness.recorder.log_writer import Settings
from kvproof.suites.tests.recorder.record_kit import judged, writer


def test_settings_come_from_the_environment(tmp_path: Path) -> None:
    assert import_hook.settings_from({}) is None
    given = {import_hook.DIRECTORY: str(tmp_path), import_hook.LIMIT: "5", import_hook.KEY: "0a"}
    assert import_hook.settings_from(given) == Settings(tmp_path, 5, b"\n")
    assert import_hook.settings_from({import_hook.DIRECTORY: "x"}) == Settings(Path("x"))


@pytest.mark.parametrize("wrong", [{import_hook.LIMIT: "1G"}, {import_hook.KEY: "no hexadecimal"}])
def test_settings_that_are_wrong_do_not_keep_the_engine_down(
    tmp_path: Path, wrong: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    finders = list(sys.meta_path)
    import_hook.start(
        {import_hook.DIRECTORY: str(tmp_path), **wrong}
    )  # a plugin that raises ends vLLM
    assert sys.meta_path == finders
    (said,) = caplog.messages
    assert "not recording: KVPROOF_RECORD_BYTES or KVPROOF_RECORD_KEY is wrong: " in said


_TOY = """
class Cache:
    def __init__(self): self.made = True
"""

_PROGRAM = """
import logging, sys
import toy_engine
assert toy_engine.hooked.directory.name == "here", toy_engine.hooked
assert toy_engine.__loader__.get_source("toy_engine").startswith("\\nclass")
assert "torch" not in sys.modules and "numpy" not in sys.modules
import sitecustomize
print(sys.modules["hidden_ran"])
"""


def test_an_engine_is_hooked_as_it_is_imported(tmp_path: Path) -> None:
    (tmp_path / "toy_engine.py").write_text(_TOY)
    (tmp_path / "toy_hook.py").write_text("def hook(module, settings): module.hooked = settings\n")
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nsys.modules['hidden_ran'] = 'yes'\n"
        "from kvproof.harness.recorder import import_hook\n"
        "import_hook.HOOKS['toy_engine'] = 'toy_hook'\n"
    )
    path = os.pathsep.join([str(boot_folder()), str(tmp_path)])
    environment = {"PYTHONPATH": path, import_hook.DIRECTORY: str(tmp_path / "here")}
    ran = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "yes\n", "")
    del environment[import_hook.DIRECTORY]
    ran = subprocess.run(
        [sys.executable, "-c", "import sys; print('kvproof' in sys.modules)"],
        env={"PYTHONPATH": str(boot_folder())}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ran.stdout, ran.stderr) == ("False\n", "")


def test_what_is_imported_already_is_hooked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, hook, seen = ModuleType("toy_engine_3"), ModuleType("toy_hook_3"), []
    hook.hook = lambda module, settings: seen.append((module, settings))  # type: ignore[attr-defined]  # a module has what it is given
    monkeypatch.setitem(sys.modules, "toy_engine_3", engine)
    monkeypatch.setitem(sys.modules, "toy_hook_3", hook)
    monkeypatch.setitem(import_hook.HOOKS, "toy_engine_3", "toy_hook_3")
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    for _ in range(2):  # plugins may be started several times
        import_hook.start({import_hook.DIRECTORY: str(tmp_path)})
    assert seen == [(engine, Settings(tmp_path))]
    assert isinstance(sys.meta_path[0], import_hook._Finder)


def test_a_hook_that_fails_does_not_keep_the_engine_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "toy_engine_2.py").write_text(_TOY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(import_hook.HOOKS, "toy_engine_2", "no_such_hook")
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    import_hook.start({import_hook.DIRECTORY: str(tmp_path)})
    import toy_engine_2  # type: ignore[import-not-found]  # written above

    assert toy_engine_2.Cache().made
    assert "toy_engine_2 is not recorded: ModuleNotFoundError" in caplog.text


_KILLED = """
import os, signal, sys
from pathlib import Path
from kvproof.suites.tests.recorder.record_kit import writer, reuse
reuse(writer(Path(sys.argv[1])))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_what_it_wrote(tmp_path: Path) -> None:
    ran = subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path)], check=False)
    assert ran.returncode == -signal.SIGKILL
    found = judged(tmp_path)
    assert (found.broken, found.requests, found.hit_tokens) == (None, 2, 8)


def test_a_forked_process_writes_nothing(tmp_path: Path) -> None:
    to = writer(tmp_path)
    child = os.fork()
    if child == 0:
        os._exit(0 if not to.active else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert to.active


class _Event:
    """Ready when told so, or when it is waited for."""

    def __init__(self) -> None:
        self.ready = self.waited = False

    def record(self) -> None:
        assert not self.ready

    def query(self) -> bool:
        return self.ready

    def synchronize(self) -> None:
        self.ready = self.waited = True


class _OnDevice:
    """A tensor on a GPU, and its copy."""

    device = SimpleNamespace(type="cuda")

    def __init__(self, *numbers: int) -> None:
        self._numbers = list(numbers)

    def to(self, where: str, *, non_blocking: bool) -> _OnDevice:
        assert (where, non_blocking) == ("cpu", True)
        return self

    def tolist(self) -> list[int]:
        return self._numbers


def test_what_lies_on_a_device_is_written_in_order_when_it_has_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[_Event] = []

    def new_event() -> _Event:
        events.append(_Event())
        return events[-1]

    device = SimpleNamespace(get_device_module=lambda: SimpleNamespace(Event=new_event))
    monkeypatch.setitem(sys.modules, "torch", device)
    written: list[list[int]] = []
    later = sglang.Later()
    later.add(_OnDevice(1), written.append)
    later.add(_OnDevice(2), written.append)
    later.add(None, written.append)
    assert written == []
    events[1].ready = True
    later.write()
    assert written == []  # the first has not come yet
    events[0].ready = True
    later.write()
    assert written == [[1], [2], []]
    for number in range(sglang._MOST_WAITING + 1):
        later.add(_OnDevice(number), written.append)
    assert [event.waited for event in events[2:5]] == [True, True, False]
    assert written[3:] == [[0], [1]]


def test_a_device_that_fails_does_not_reach_the_engine_in_a_reset(tmp_path: Path) -> None:
    class Failing(_Event):
        def query(self) -> bool:
            raise RuntimeError("device lost")

    cache, later = ModuleType("cache"), sglang.Later()
    later._queue.append(sglang._Waiting(_OnDevice(1), Failing(), print))
    setattr(cache, hooks.ATTRIBUTE, writer(tmp_path))
    setattr(cache, sglang._LATER, later)
    hooks.after(sglang._forgot)(lambda _: None)(cache)
    assert judged(tmp_path).stopped == "RuntimeError: device lost"
