"""Recordings: what is written, how it is judged, and what happens to damaged ones."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kvproof.harness.adapters.reference import make_target
from kvproof.harness.errors import UsageError
from kvproof.harness.recorder import boot_folder, hooks, sglang, shim
from kvproof.harness.recorder.codec import Veil, pack, unpack
from kvproof.harness.recorder.journal import Arrival, Cache, Journal, Settings
from kvproof.harness.recorder.recording import Recording, is_recording, recordings
from kvproof.harness.recorder.rerun import rerun
from kvproof.harness.recorder.segments import KEPT, Segments
from kvproof.harness.recorder.verdict import Judged, judge

SIZE = 4
KEY = bytes(range(32))
PROMPT = list(range(100, 140))


def journal(folder: Path, *, limit: int = 1 << 20, key: bytes = b"") -> Journal:
    cache = Cache("toy", "1", num_blocks=64, block_size=SIZE)
    return Journal(cache, Settings(folder, limit, key), lambda tokens, a, b: tokens[a:b])


def admit(
    to: Journal, name: str, count: int, blocks: Sequence[int], hit: int = 0, **rest: Any
) -> list[int]:
    """The first `count` tokens of the prompt; returns what the engine has of them."""
    tokens = PROMPT[:count]
    arrival = Arrival(name, **rest)
    to.admit(tokens, arrival, known=count, hit=hit, stop=count, blocks=blocks)
    return tokens


def reuse(to: Journal, **rest: Any) -> list[int]:
    """Two requests one after the other, the second of which hits two blocks."""
    admit(to, "first", 10, [1, 2, 3])
    to.release("first", "finish", [1, 2, 3])
    return admit(to, "second", 11, [1, 2, 4], hit=8, **rest)


def decode(to: Journal, name: str, tokens: list[int], fresh: dict[int, int]) -> None:
    """Ten tokens more; `fresh`: length at which a block comes."""
    for number in range(10):
        tokens.append(200 + number)
        stop = len(tokens)
        to.step(name, stop, stop, [fresh[stop]] if stop in fresh else ())


def only(folder: Path) -> Recording:
    (found,) = recordings(folder)
    return found


def judged(folder: Path) -> Judged:
    return judge(only(folder), tell=True)


# --- what is written ---


@pytest.mark.parametrize("numbers", [[], [0], [-1, 5], [2**31 - 1], [2**31, 1], [-(2**40), 2**62]])
def test_numbers_are_read_as_they_were_written(numbers: list[int]) -> None:
    assert unpack(pack(numbers)) == tuple(numbers)


@pytest.mark.parametrize("text", ["", "x", "iAA", "i!!!!", "iAAA=", "qAAAAAA=="])
def test_what_is_no_list_of_numbers_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"numbers|base64|[Pp]adding|alphabet"):
        unpack(text)


def test_a_history_is_written_and_judged(tmp_path: Path) -> None:
    to = journal(tmp_path)
    tokens = reuse(to)
    decode(to, "second", tokens, {13: 5, 17: 6, 21: 7})
    to.release("second", "cancel", [1, 2, 4, 5, 6, 7])
    to.reset(done=True)
    found = judged(tmp_path)
    assert found.broken is None
    assert (found.requests, found.tokens, found.hit_tokens) == (2, 21, 8)
    assert found.happened == {
        "hit": 1, "evicted block": 0, "preemption": 0, "reset": 1,
    }  # fmt: skip
    assert found.checks["reads_return_own_content"] > 4
    assert [each.sentence for each in found.told] == [
        "hit 0 of 10 tokens: no earlier request began like it",
        "hit 8 of 11 tokens: all that was computed before",
    ]


def test_a_decoding_step_is_written_when_it_brings_or_fills_a_block(tmp_path: Path) -> None:
    to = journal(tmp_path)
    tokens = admit(to, "a", 8, [1, 2])
    before = to._segments._size
    tokens.append(7)
    to.step("a", 9, 9, [3])
    after_block = to._segments._size
    for stop in (10, 11):
        tokens.append(7)
        to.step("a", stop, stop)
    assert before < after_block == to._segments._size
    tokens.append(7)
    to.step("a", 12, 12)
    assert to._segments._size > after_block


def test_tokens_that_are_not_known_yet_are_written_later(tmp_path: Path) -> None:
    to = journal(tmp_path)
    tokens = admit(to, "a", 8, [1, 2])
    to.step("a", 8, 9, [3])  # scheduled before the token is known
    tokens += [9, 9, 9, 9]
    to.step("a", 12, 13, [4])
    to.release("a", "finish", [1, 2, 3, 4])
    admit(to, "b", 8, [1, 5], hit=4)
    found = judged(tmp_path)
    assert found.broken is None


def test_prompts_can_be_hidden(tmp_path: Path) -> None:
    plain, hidden = tmp_path / "plain", tmp_path / "hidden"
    for folder, key in ((plain, b""), (hidden, KEY)):
        to = journal(folder, key=key)
        reuse(to, salt=None, adapter="secret-adapter")
        to.release("second", "finish", [1, 2, 4])
    told = only(hidden).paths[0].read_text()
    assert "secret-adapter" not in told
    assert pack(PROMPT[:10]) not in told
    assert pack(PROMPT[:10]) in only(plain).paths[0].read_text()
    # who hits another tenant's block is found either way
    broken = [judged(folder).broken for folder in (plain, hidden)]
    assert [each.violation.property for each in broken if each] == ["namespaces_are_separate"] * 2


def test_hidden_tokens_depend_on_all_before_them() -> None:
    veil = Veil(KEY)
    one, two, other = veil.chain(), veil.chain(), Veil(KEY[::-1]).chain()
    parts = [*one.tokens([5, 5]), *one.tokens([6, 5])]
    assert parts == two.tokens([5, 5, 6, 5])
    assert len(set(parts)) == 4
    assert parts != other.tokens([5, 5, 6, 5])


def test_the_oldest_files_are_dropped(tmp_path: Path) -> None:
    to = journal(tmp_path, limit=4 * 900)
    for index in range(40):
        admit(to, f"r{index}", 10, [1, 2, 3 + index % 50], hit=8 if index else 0)
        if index % 7:
            to.release(f"r{index}", "finish", [1, 2, 3 + index % 50])
    found = only(tmp_path)
    assert len(found.paths) <= KEPT
    assert found.dropped > 0
    assert all(path.stat().st_size < 4000 for path in found.paths)
    verdict = judge(found)
    assert verdict.broken is None
    assert verdict.trusted > 0
    assert verdict.hit_tokens == 8 * verdict.requests > 0


# --- what is found ---


def wrong_block(to: Journal) -> None:
    admit(to, "first", 10, [1, 2, 3])
    admit(to, "second", 11, [2, 1, 4], hit=8)


def stolen(to: Journal) -> None:
    admit(to, "first", 10, [1, 2, 3])
    admit(to, "second", 11, [1, 2, 3], hit=8)


def stale(to: Journal) -> None:
    admit(to, "first", 10, [1, 2, 3])
    to.release("first", "finish", [1, 2, 3])
    to.reset(done=True)
    admit(to, "second", 11, [1, 2, 4], hit=8)


def salted(to: Journal) -> None:
    reuse(to, salt="tenant")


def lost(to: Journal) -> None:
    admit(to, "first", 10, [1, 2, 3])
    to.release("first", "finish", [1, 2, 3])
    admit(to, "second", 11, [4, 5, 6])


def kept(to: Journal) -> None:
    admit(to, "first", 10, [1, 2, 3])
    to.release("first", "finish", [1, 2])


def null(to: Journal) -> None:
    admit(to, "first", 10, [0, 2, 3])


def refused(to: Journal) -> None:
    admit(to, "first", 10, [1, 2, 3])
    to.release("first", "finish", [1, 2, 3])
    to.reset(done=False)


def unread(to: Journal) -> None:
    admit(to, "first", 11, [1, 2, 3], hit=8)


def imaged(to: Journal) -> None:
    admit(to, "first", 10, [1, 2, 3], spans=(("image", 2, 4, "cat"),))
    admit(to, "second", 11, [1, 2, 4], hit=8, spans=(("image", 2, 4, "dog"),))


def evicted(to: Journal) -> None:
    admit(to, "first", 10, [1, 2, 3])
    to.release("first", "finish", [1, 2, 3])
    to.evict([1])
    admit(to, "second", 11, [1, 2, 4], hit=8)


@pytest.mark.parametrize(
    ("history", "prop"),
    [
        (wrong_block, "reads_return_own_content"),
        (stolen, "written_blocks_have_one_owner"),
        (stale, "no_hit_across_epochs"),
        (salted, "namespaces_are_separate"),
        (lost, "hits_are_maximal"),
        (kept, "release_returns_what_was_held"),
        (null, "null_block_is_never_used"),
        (refused, "reset_does_what_it_says"),
        (unread, "nothing_is_read_before_it_is_written"),
        (imaged, "spans_are_separate"),
        (evicted, "hits_come_from_the_cache"),
    ],
)
def test_what_an_engine_did_wrong_is_named(
    tmp_path: Path, history: Callable[[Journal], None], prop: str
) -> None:
    history(journal(tmp_path))
    broken = judged(tmp_path).broken
    assert broken is not None
    assert broken.violation.property == prop
    assert broken.place.number == len(only(tmp_path).paths[0].read_bytes().splitlines())
    if prop != "reset_does_what_it_says":
        assert broken.name in ("first", "second")
        assert f"request {broken.name!r} of the engine" in str(broken)


def loading(to: Journal) -> None:
    """The first request's tokens come from a connector, and are not there for the second yet."""
    first = PROMPT[:10]
    to.admit(first, Arrival("first"), known=10, hit=0, stop=9, blocks=[1, 2, 3], loaded=9)
    admit(to, "second", 11, [4, 5, 6])
    to.release("second", "finish", [4, 5, 6])
    to.release("first", "finish", [1, 2, 3], fenced=True)
    to.reset(done=False)


def capped(to: Journal) -> None:
    to.cap()
    to.cap()
    lost(to)


def reading_nothing(to: Journal) -> None:
    admit(to, "first", 10, [1, 2, 3])
    admit(to, "second", 11, [4, 5, 6], read=False)


@pytest.mark.parametrize("history", [loading, capped, reading_nothing])
def test_what_an_engine_may_do_is_no_violation(
    tmp_path: Path, history: Callable[[Journal], None]
) -> None:
    history(journal(tmp_path))
    assert judged(tmp_path).broken is None
    assert only(tmp_path).paths[0].read_text().count('"cap"') == (history is capped)


def test_a_request_that_may_not_read_and_hits_is_found(tmp_path: Path) -> None:
    reuse(journal(tmp_path), read=False)
    broken = judged(tmp_path).broken
    assert broken is not None
    assert broken.violation.property in (
        "requests_that_may_not_read_hit_nothing", "hits_come_from_the_cache",
    )  # fmt: skip


def test_blocks_put_in_place_of_equal_ones_are_judged(tmp_path: Path) -> None:
    to = journal(tmp_path)
    admit(to, "first", 10, [1, 2, 3])
    admit(to, "second", 11, [4, 5, 6])
    to.table("second", [1, 2])
    lines = only(tmp_path).paths[0].read_text().count('"table"')
    assert lines == 1
    verdict = judge(only(tmp_path))
    assert verdict.broken is not None  # this engine is said to find what it has: a lost hit
    assert verdict.broken.violation.property == "hits_are_maximal"


def test_it_is_run_again_on_another_target(tmp_path: Path) -> None:
    to = journal(tmp_path)
    lost(to)
    found = rerun(only(tmp_path), make_target(only(tmp_path).header.config))
    assert found.violation is None
    assert (found.requests, found.recorded, found.target) == (2, 0, 8)
    ((name, _, prompt, recorded, target),) = found.differences
    assert (name, prompt, recorded, target) == ("second", 11, 0, 8)


# --- when the recorder fails ---


def test_an_error_of_the_recorder_ends_the_recording_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    to = journal(tmp_path)
    admit(to, "first", 10, [1, 2, 3])
    with caplog.at_level(logging.WARNING, "kvproof.record"):
        assert to.guard(Journal.table, "nobody", [1]) is None
        assert to.guard(Journal.table, "nobody", [1]) is None
    assert [record.message for record in caplog.records] == [
        "kvproof record: recording stopped: KeyError: 'nobody'"
    ]
    found = judged(tmp_path)
    assert (found.requests, found.stopped) == (1, "KeyError: 'nobody'")


def test_a_full_disk_ends_the_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    to = journal(tmp_path)
    with monkeypatch.context() as disk:
        disk.setattr(Segments, "write", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
        to.guard(lambda _: reuse(to))
    assert not to.active
    assert "OSError: disk full" in caplog.text
    assert "the reason could not be written" in caplog.text


def test_a_folder_that_cannot_be_made_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    owner = ModuleType("cache")
    cache = Cache("toy", "1", 8, SIZE)
    hooks.begin(owner, lambda _: cache, Settings(tmp_path / "file" / "x"), lambda *_: ())
    assert hooks.journal_of(owner) is None
    assert "not recording: NotADirectoryError" in caplog.text


def test_a_cache_that_cannot_be_recorded_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    owner = ModuleType("cache")
    hooks.begin(owner, lambda _: "it has three heads", Settings(tmp_path), lambda *_: ())
    assert hooks.journal_of(owner) is None
    assert "not recorded: it has three heads" in caplog.text


_KILLED = """
import os, signal, sys
from pathlib import Path
from kvproof.suites.tests.test_record import journal, reuse
reuse(journal(Path(sys.argv[1])))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_what_it_wrote(tmp_path: Path) -> None:
    ran = subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path)], check=False)
    assert ran.returncode == -signal.SIGKILL
    found = judged(tmp_path)
    assert (found.broken, found.requests, found.hit_tokens) == (None, 2, 8)


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_torn_last_line_is_left_out(tmp_path: Path, cut: int) -> None:
    reuse(journal(tmp_path))
    path = only(tmp_path).paths[0]
    path.write_bytes(path.read_bytes()[:-cut])
    found = judged(tmp_path)
    assert (found.broken, found.requests) == (None, 1)


def test_a_forked_process_writes_nothing(tmp_path: Path) -> None:
    to = journal(tmp_path)
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


# --- what is no recording ---


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines(keepends=True)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda lines: ["garbage\n", *lines[1:]], "is no recording"),
        (lambda lines: ["[1, 2]\n", *lines[1:]], "its first line says nothing of it"),
        (lambda lines: [lines[0].replace('"format":1', '"format":9')], "newer kvproof: format 9"),
        (lambda lines: [lines[0].replace('"format":1', '"format":"x"')], "newer kvproof"),
        (lambda lines: [lines[0].replace('"block_size":4', '"block_size":0')], "of 0 tokens"),
        (lambda lines: [lines[0].replace('"block_size":4', '"block_size":"x"')], "Expected `int`"),
        (lambda lines: [lines[0][:20]], "ends inside its first line"),
        (lambda lines: [*lines[:2], "garbage\n", lines[2]], ":3 is damaged"),
        (lambda lines: [*lines[:2], '{"op":"dance","t":1}\n'], "unknown operation 'dance'"),
        (
            lambda lines: [*lines[:1], lines[1].replace('"tokens":"i', '"tokens":"x')],
            ":2 is damaged",
        ),
        (lambda lines: [lines[0], lines[2]], "is about request 1, which no line before it admits"),
    ],
)
def test_what_is_damaged_is_refused_kindly(
    tmp_path: Path, damage: Callable[[list[str]], list[str]], said: str
) -> None:
    reuse(journal(tmp_path))
    path = only(tmp_path).paths[0]
    path.write_text("".join(damage(_lines(path))))
    with pytest.raises(UsageError) as caught:
        judged(tmp_path)
    assert said in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_folder_without_recordings_is_none(tmp_path: Path) -> None:
    assert not is_recording(tmp_path)
    with pytest.raises(UsageError, match="there is no recording at"):
        recordings(tmp_path)
    (tmp_path / "other.kvrec").write_text("")
    with pytest.raises(UsageError, match="there is no recording at"):
        recordings(tmp_path / "other.kvrec")


# --- how it gets into a process ---


def test_settings_come_from_the_environment(tmp_path: Path) -> None:
    assert shim.settings_from({}) is None
    given = {shim.DIRECTORY: str(tmp_path), shim.LIMIT: "5", shim.KEY: "0a"}
    assert shim.settings_from(given) == Settings(tmp_path, 5, b"\n")
    assert shim.settings_from({shim.DIRECTORY: "x"}) == Settings(Path("x"))


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
        "from kvproof.harness.recorder import shim\nshim.HOOKS['toy_engine'] = 'toy_hook'\n"
    )
    path = os.pathsep.join([str(boot_folder()), str(tmp_path)])
    environment = {"PYTHONPATH": path, shim.DIRECTORY: str(tmp_path / "here")}
    ran = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "yes\n", "")
    del environment[shim.DIRECTORY]
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
    monkeypatch.setitem(shim.HOOKS, "toy_engine_3", "toy_hook_3")
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    for _ in range(2):  # plugins may be started several times
        shim.start({shim.DIRECTORY: str(tmp_path)})
    assert seen == [(engine, Settings(tmp_path))]
    assert isinstance(sys.meta_path[0], shim._Finder)


def test_a_hook_that_fails_does_not_keep_the_engine_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "toy_engine_2.py").write_text(_TOY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(shim.HOOKS, "toy_engine_2", "no_such_hook")
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    shim.start({shim.DIRECTORY: str(tmp_path)})
    import toy_engine_2  # type: ignore[import-not-found]  # written above

    assert toy_engine_2.Cache().made
    assert "toy_engine_2 is not recorded: ModuleNotFoundError" in caplog.text
