from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof.harness.contract.target import (
    CONTRACT_VERSION,
    Evicted,
    Inspection,
    Namespace,
    Refused,
    Released,
    Request,
    Scheduled,
    Span,
    Target,
    TargetConfig,
    Usage,
)
from kvproof.harness.errors import TargetDied
from kvproof.harness.isolation import worker_main as worker
from kvproof.harness.isolation.handles import VERBS, Handle, InProcessHandle
from kvproof.harness.isolation.worker_handle import WorkerHandle
from kvproof.suites.tests.adapters import worker_fakes
from kvproof.suites.tests.patience import LONG, until

FAKES = "kvproof.suites.tests.adapters.worker_fakes"
CONFIG = TargetConfig(num_blocks=8, block_size=64)
SOURCES = Path(worker.__file__).parents[1]


def open_worker(log: Path, factory: str = "make_toy", **timeouts: float) -> WorkerHandle:
    return WorkerHandle("toy", Path(sys.executable), f"{FAKES}:{factory}", log, **timeouts)


@pytest.fixture
def toy(tmp_path: Path) -> Iterator[WorkerHandle]:
    with open_worker(tmp_path / "toy.log", call_timeout=LONG) as handle:
        yield handle


def pid_of(target: Target) -> int:
    return target.lookup(Request("any", (1,)))


def gone(pid: int) -> bool:
    """Wait for the end of a process."""

    def is_over() -> bool:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        return state == "Z"

    until(is_over)
    return True


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


REQUESTS = st.builds(
    Request,
    id=st.text(),
    tokens=st.lists(st.integers(0, 1 << 31)).map(tuple),
    namespace=st.builds(Namespace, *[st.none() | st.text()] * 3),
    spans=st.lists(st.builds(Span, st.text(), st.integers(), st.integers(), st.text())).map(tuple),
    read=st.booleans(),
    store=st.booleans(),
    resumed=st.booleans(),
)


@given(REQUESTS)
def test_a_request_survives_the_pipe(request: Request) -> None:
    line = json.dumps(request, default=worker.plain)
    assert worker.decode(Request, json.loads(line)) == request


def test_records_and_defaults_survive_the_pipe(toy: WorkerHandle) -> None:
    target = toy.create(CONFIG)
    request = Request("a", (1, 2, 3), Namespace("x", salt="y"), (Span("image", 0, 2, "7f"),))
    assert target.admit(request) == Scheduled(1, 0, 0, 3, ((1, 2),), ((1, 2),), ((0, 1, 2),))
    assert target.inspect().state == repr(request)
    assert target.inspect().holders == {3: 1}
    assert target.inspect().usage.total == 7
    assert target.admit(request, compute=2) == target.admit(request, 2)
    assert target.reset() == Refused("busy", 1, 2, "held")
    assert target.evict(count=3) == Evicted(((0, 1, 2),))


def test_handle_says_what_it_runs(toy: WorkerHandle) -> None:
    assert toy.profile == worker_fakes.Toy.profile
    assert toy.python == sys.version.split()[0]
    assert (toy.name, toy.isolation, toy.factory) == ("toy", "worker", f"{FAKES}:make_toy")
    assert isinstance(toy.create(CONFIG), Target)
    assert set(VERBS) > {"admit", "extend", "complete", "close"}


@pytest.mark.parametrize(
    ("deed", "kind", "message"),
    [
        ("exit", "crash", "the worker exited with code 3 during finish"),
        ("sys.exit", "crash", "SystemExit: 4"),
        ("sigkill", "crash", "the worker was killed by SIGKILL during finish"),
        ("segfault", "crash", "the worker was killed by SIGSEGV during finish"),
        ("real-time signal", "crash", "the worker was killed by signal 35 during finish"),
        ("none", "garbage", "finish answered NoneType null, expected Released"),
        ("wrong record", "garbage", "finish answered Evicted"),
        ("wrong field", "garbage", "Expected `array`, got `str` - at `$.blocks`"),
        ("no json", "garbage", "the answer to finish cannot be written as JSON"),
        ("noise", "garbage", "not an answer to finish"),
        ("echo of an old answer", "garbage", "answer 1 to call 3 (finish)"),
    ],
)
def test_a_bad_deed_is_a_verdict_and_the_handle_recovers(
    toy: WorkerHandle, deed: str, kind: str, message: str
) -> None:
    target = toy.create(CONFIG)
    with pytest.raises(TargetDied) as death:
        target.finish(deed)
    assert (death.value.kind, message in str(death.value)) == (kind, True), str(death.value)
    assert toy.create(CONFIG).finish("fine") == Released()


def test_a_crash_brings_the_native_stack_of_the_log(toy: WorkerHandle) -> None:
    with pytest.raises(TargetDied) as death:
        toy.create(CONFIG).finish("segfault")
    assert "Fatal Python error: Segmentation fault" in death.value.log
    assert "worker_fakes.py" in death.value.log


def test_an_exception_leaves_the_worker_usable(toy: WorkerHandle) -> None:
    target = toy.create(CONFIG)
    before = pid_of(target)
    with pytest.raises(TargetDied, match="TypeError: block 7 is not iterable") as death:
        target.finish("raise")
    assert death.value.kind == "crash"
    assert 'raise TypeError("block 7 is not iterable")' in death.value.log
    assert pid_of(target) == before
    assert pid_of(toy.create(CONFIG)) == before


def test_a_hang_ends_with_everything_the_worker_started(tmp_path: Path) -> None:
    with open_worker(tmp_path / "log", call_timeout=2) as handle:
        target = handle.create(CONFIG)
        pid = pid_of(target)
        with ThreadPoolExecutor(1) as pool:
            children = pool.submit(first_children, pid)
            with pytest.raises(TargetDied, match="no answer to finish within 2 s") as death:
                target.finish("hang with child")
        assert death.value.kind == "hang"
        assert len(children.result()) == 1
        assert all(map(gone, [pid, *children.result()]))
        assert handle.create(CONFIG).finish("fine") == Released()


def test_output_of_the_engine_goes_to_the_log(toy: WorkerHandle, tmp_path: Path) -> None:
    assert toy.create(CONFIG).finish("print") == Released(((5,),))
    log = (tmp_path / "toy.log").read_text()
    assert "hello from print" in log
    assert "hello from descriptor 1" in log


def test_the_log_of_a_verdict_is_that_of_its_own_worker(toy: WorkerHandle) -> None:
    target = toy.create(CONFIG)
    target.finish("print")
    for _ in range(2):
        with pytest.raises(TargetDied) as death:
            toy.create(CONFIG).finish("exit")
    assert "hello from print" not in death.value.log


def test_a_replaced_or_closed_target_is_out_of_use(toy: WorkerHandle, tmp_path: Path) -> None:
    old = toy.create(CONFIG)
    new = toy.create(CONFIG)
    with pytest.raises(RuntimeError, match="closed or replaced"):
        old.inspect()
    old.close()
    assert new.inspect().usage.total == 7
    new.close()
    new.close()
    with pytest.raises(RuntimeError, match="closed or replaced"):
        new.inspect()
    closed = (tmp_path / "toy.log").read_text().count("toy closed")
    assert closed == 3  # the one asked for its profile, the replaced one, the closed one


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("nothing_here", "has no attribute 'nothing_here'"),
        ("make_nothing", "OSError: no device for 16 blocks"),
        ("make_future", f"contract 99 in the worker, {CONTRACT_VERSION} here"),
        ("make_sleeper", "no answer to __init__ or close within 2 s"),
    ],
)
def test_a_failed_start_is_a_verdict(tmp_path: Path, factory: str, message: str) -> None:
    limit = 2 if factory == "make_sleeper" else LONG
    with open_worker(tmp_path / "log", factory, start_timeout=limit) as handle:
        for _ in range(2):
            with pytest.raises(TargetDied) as death:
                handle.create(CONFIG)
            assert death.value.kind == "start"
            assert message in str(death.value)


def test_a_refused_configuration_is_a_failed_start(toy: WorkerHandle) -> None:
    with pytest.raises(TargetDied, match="ValueError: block size 16 is not 64") as death:
        toy.create(TargetConfig(num_blocks=8, block_size=16))
    assert death.value.kind == "start"


def test_a_missing_interpreter_is_a_failed_start(tmp_path: Path) -> None:
    handle = WorkerHandle("toy", tmp_path / "python", f"{FAKES}:make_toy", tmp_path / "log")
    with pytest.raises(TargetDied, match="No such file or directory") as death:
        _ = handle.profile
    assert death.value.kind == "start"


def test_jobs_run_in_the_worker(toy: WorkerHandle) -> None:
    big = {"text": "x" * 3_000_000}
    assert toy.run_job(f"{FAKES}:echo", big, timeout=LONG)["length"] > 3_000_000
    with pytest.raises(TargetDied, match="job answered list"):
        toy.run_job(f"{FAKES}:no_dict", {}, timeout=LONG)
    with pytest.raises(TargetDied, match=r"no answer to job within 0\.5 s"):
        toy.run_job(f"{FAKES}:sleep", {"seconds": 30}, timeout=0.5)
    with pytest.raises(TargetDied, match="ModuleNotFoundError"):
        toy.run_job("kvproof.nowhere:job", {}, timeout=LONG)


def test_a_worker_that_does_not_read_is_a_hang(toy: WorkerHandle) -> None:
    pid = pid_of(toy.create(CONFIG))
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(TargetDied, match="no answer to job") as death:
        toy.run_job(f"{FAKES}:echo", {"text": "x" * 3_000_000}, timeout=1)
    assert death.value.kind == "hang"
    assert gone(pid)


def test_closing_leaves_no_process(tmp_path: Path) -> None:
    with open_worker(tmp_path / "log") as handle:
        pid = pid_of(handle.create(CONFIG))
    assert gone(pid)
    handle.close()


HOST = f"""
import sys
from pathlib import Path
from kvproof.harness.isolation.worker_handle import WorkerHandle
from kvproof.harness.contract.target import Request, TargetConfig
handle = WorkerHandle("toy", Path(sys.executable), "{FAKES}:make_toy", Path(sys.argv[1]))
target = handle.create(TargetConfig(8, 64))
print(target.lookup(Request("any", (1,))), flush=True)
target.finish("hang with child")
"""


def test_closing_leaves_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with open_worker(tmp_path / "log", call_timeout=LONG) as handle:
        handle.run_job(f"{FAKES}:leave_a_file", {}, timeout=LONG)
        assert len([*tmp_path.glob("kvproof-worker-*/left-*")]) == 1
    assert not [*tmp_path.glob("kvproof-worker-*")]


def test_a_killed_host_leaves_no_orphan_and_no_temporary_file(tmp_path: Path) -> None:
    host = subprocess.Popen(
        [sys.executable, "-c", HOST, str(tmp_path / "log")],
        env={**os.environ, "TMPDIR": str(tmp_path)}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert host.stdout is not None
    pid = int(host.stdout.readline())
    family = [pid, *first_children(pid)]
    assert [*tmp_path.glob("kvproof-worker-*")]
    host.kill()
    host.wait()
    host.stdout.close()
    assert len(family) == 2
    assert all(map(gone, family))
    until(lambda: not [*tmp_path.glob("kvproof-worker-*")])


def first_children(pid: int) -> list[int]:
    """Children of a process as soon as it has any."""
    until(lambda: children_of(pid))
    return children_of(pid)


def test_an_interrupt_of_the_host_ends_the_worker(
    toy: WorkerHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = toy.create(CONFIG)
    pid = pid_of(target)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kvproof.harness.isolation.process.WorkerProcess.receive", interrupt)
    with pytest.raises(KeyboardInterrupt):
        target.inspect()
    monkeypatch.undo()
    assert gone(pid)
    assert toy.create(CONFIG).inspect().usage.total == 7


def in_process() -> Handle:
    return InProcessHandle("toy", worker_fakes.make_toy)


def test_in_process_targets_answer_alike() -> None:
    with in_process() as handle:
        assert (handle.isolation, handle.factory) == ("in_process", f"{FAKES}:make_toy")
        assert handle.profile.engine == "toy"
        target = handle.create(CONFIG)
        assert isinstance(target, Target)
        assert target.finish("fine") == Released()
        assert handle.run_job(f"{FAKES}:echo", {"a": 1}, timeout=1) == {"length": 8, "a": 1}


@pytest.mark.parametrize(
    ("deed", "kind", "message"),
    [
        ("raise", "crash", "TypeError: block 7 is not iterable"),
        ("none", "garbage", "finish answered NoneType None, expected Released"),
    ],
)
def test_in_process_misbehaviour_is_a_verdict(deed: str, kind: str, message: str) -> None:
    with in_process() as handle:
        with pytest.raises(TargetDied) as death:
            handle.create(CONFIG).finish(deed)
        assert (death.value.kind, str(death.value)) == (kind, message)
        assert handle.create(CONFIG).finish("fine") == Released()


ADMITTED = Scheduled(1, 0, 0, 3, ((1,),), ((1,),))
INSPECTED = Inspection(Usage(7, 7, 0, 0), holders={1: 1})


@pytest.mark.parametrize(
    ("verb", "answer", "wrong"),
    [
        ("admit", replace(ADMITTED, hit=None), "`int`, got `null` - at `$.hit`"),
        ("admit", replace(ADMITTED, blocks=(3,)), "`array`, got `int` - at `$.blocks[0]`"),
        ("admit", replace(ADMITTED, tables=((object(),),)), "cannot be interpreted"),
        ("inspect", replace(INSPECTED, usage=None), "`object`, got `null` - at `$.usage`"),
        ("inspect", replace(INSPECTED, holders={"a": 1}), "`int`, got `str`"),
        ("lookup", True, "`int`, got `bool`"),
        ("experts", ("1",), "`int | null`, got `str` - at `$[0]`"),
    ],
)
def test_a_field_of_the_wrong_type_is_a_verdict_in_process_too(
    verb: str, answer: object, wrong: str
) -> None:
    with pytest.raises(TargetDied) as died:
        getattr(answering(verb, answer), verb)()
    assert died.value.kind == "garbage"
    assert str(died.value).startswith(f"{verb} answered {type(answer).__name__}")
    assert wrong in str(died.value)


def test_lists_and_integers_of_an_engine_s_own_are_read_as_those_of_a_worker() -> None:
    reported = replace(ADMITTED, blocks=[[np.int32(1)]], tables=[[1]], hit=np.int64(0))  # type: ignore[arg-type]  # what engines do
    assert answering("admit", reported).admit(Request("a", (1, 2, 3))) == ADMITTED
    assert answering("inspect", INSPECTED).inspect() == INSPECTED


def answering(verb: str, answer: object) -> Target:
    def make(config: TargetConfig) -> Target:
        target = worker_fakes.make_toy(config)
        vars(target)[verb] = lambda *_: answer
        return target

    return InProcessHandle("mine:make", make).create(CONFIG)


def test_in_process_factory_that_fails_is_a_failed_start() -> None:
    handle = InProcessHandle("nothing", worker_fakes.make_nothing)
    with pytest.raises(TargetDied, match="no device") as death:
        handle.create(CONFIG)
    assert death.value.kind == "start"
    assert "Traceback" in death.value.log


def test_in_process_targets_are_closed_once(capsys: pytest.CaptureFixture[str]) -> None:
    handle = in_process()
    _ = handle.profile
    capsys.readouterr()
    target = handle.create(CONFIG)
    target.close()
    target.close()
    handle.close()
    assert capsys.readouterr().out == "toy closed\n"


ENGINE_SIDE = [
    "isolation/worker_main.py",
    "contract/target.py",
    "adapters/vllm/target.py",
    "adapters/vllm/api.py",
    "contract/profile.py",
]


@pytest.mark.parametrize("name", ENGINE_SIDE)
def test_engine_side_files_parse_on_python_3_10(name: str) -> None:
    ast.parse((SOURCES / name).read_text(), feature_version=(3, 10))


@pytest.mark.parametrize("name", ENGINE_SIDE)
def test_engine_side_files_import_the_standard_library_only(name: str) -> None:
    allowed = {*sys.stdlib_module_names, "kvproof"} | (
        {"torch", "vllm"} if "vllm" in name else set()
    )
    found = set()
    for node in ast.walk(ast.parse((SOURCES / name).read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            found.add(node.module.partition(".")[0])
    assert found <= allowed
    assert found


def test_a_job_reads_the_clock_of_the_worker_not_ours(toy: WorkerHandle) -> None:
    def read() -> float:
        job = f"{worker.__name__}:{worker.clock.__name__}"
        return float(toy.run_job(job, {}, timeout=LONG)["seconds"])

    first, busy = read(), time.process_time() + 0.5
    while time.process_time() < busy:
        pass
    assert 0 < first < read() < first + 0.5
