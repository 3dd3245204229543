"""What is run on a device, here on a CPU, and what of a GPU can be judged without one."""

from __future__ import annotations

import gc
import types

import pytest

torch = pytest.importorskip("torch", reason="the extra gpu is not installed")

from kvproof.harness.cli.actions.serving import models  # noqa: E402 - likewise
from kvproof.harness.cli.arguments.serve import ServeOptions  # noqa: E402 - likewise
from kvproof.reference.model_runner import object_transfer  # noqa: E402 - likewise
from kvproof.reference.tiers import remote  # noqa: E402 - likewise
from kvproof.reference.transfer.host_object import HostObject  # noqa: E402 - after torch is there
from kvproof.reference.transfer.layer_groups import layer_groups  # noqa: E402 - likewise
from kvproof.reference.transfer.layouts import Hint  # noqa: E402 - likewise
from kvproof.reference.transfer.pinned import PinError, Pinned  # noqa: E402 - likewise
from kvproof.reference.transfer.staging import Staging  # noqa: E402 - likewise
from kvproof.suites.reference.cache_server.local import LocalServer, Settings  # noqa: E402 - likewise
from kvproof.suites.reference.transfer.draws import MODELS, model  # noqa: E402 - likewise
from kvproof.suites.tests.lab.stress.transfer import __main__ as command  # noqa: E402 - likewise
from kvproof.suites.tests.lab.stress.transfer.jobs import Job, do, jobs  # noqa: E402 - likewise
from kvproof.suites.tests.lab.stress.transfer.shared_pages import share  # noqa: E402 - likewise

LATER = 2**40
"""A deadline that does not come."""


@pytest.fixture(autouse=True)
def _compiled_only(monkeypatch):
    """Other tests of this process may have chosen Triton's interpreter, which is slow."""
    monkeypatch.setattr("kvproof.kernels.block_transfer.launch.runs_triton", lambda _: False)


def test_a_gpu_has_more_to_bring_through_than_a_cpu():
    here, there = (list(jobs(device, processes=2, seed=0)) for device in ("cpu", "cuda"))
    kinds = {job.kind for job in there}
    assert kinds - {job.kind for job in here} == {"deaf", "far", "not pinned"}
    for kind in ("model", "model late", "same bytes", "cache server"):
        assert {job.name for job in there if job.kind == kind} == set(MODELS)
    widths = {cache["head"] - cache["scales"] for job in there if job.kind == "widths"
              for cache in job.config["caches"]}  # fmt: skip
    assert widths == set(range(1, 1201))
    assert {job.config["device"] for job in there} == {"cuda"}


@pytest.mark.slow(reason="runs kernels in Triton's interpreter")
@pytest.mark.parametrize("kind", ["model late", "same bytes", "cache server", "two processes"])
def test_a_job_of_each_kind_is_right_on_a_cpu(kind):
    done = do(Job(kind, "x", model("DeepSeek-V3.2 and GLM-5", 3) | {"device": "cpu"}), LATER)
    assert done.wrong == ""
    assert done.checks.total() > 0


def test_a_wrong_byte_and_a_crash_are_told_with_their_job(monkeypatch):
    monkeypatch.setattr(
        "kvproof.suites.reference.transfer.machine.TransferMachine.store", lambda *_, **__: 1 // 0
    )
    done = do(Job("model", "x", model("gpt-oss 20B", 2)), LATER)
    assert "ZeroDivisionError" in done.wrong
    found = [Job("model", "x", {}), Job("model", "y", {})]
    lines = list(command.report(found, [done]))
    assert lines[0].startswith("model           1 of 2 jobs,       0 checks, 1 wrong,")
    assert lines[1].startswith("WRONG model, x: Traceback")


class Driver:
    """CUDA's runtime, as far as pinning goes."""

    def __init__(self, answer=0):
        self.answer, self.pinned = answer, {}

    def cudaHostRegister(self, address, size, flags):  # noqa: N802 - its name
        assert flags == 0
        if not self.answer:
            self.pinned[address] = size
        return self.answer

    def cudaHostUnregister(self, address):  # noqa: N802 - its name
        del self.pinned[address]


def test_memory_is_pinned_as_long_as_somebody_holds_it(monkeypatch):
    driver, memory = Driver(), bytearray(4096)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: driver)
    pinned = Pinned(memory)
    assert list(driver.pinned.values()) == [4096]
    del pinned
    gc.collect()
    assert not driver.pinned


def test_memory_that_cannot_be_pinned_is_not_taken_for_pinned(monkeypatch):
    monkeypatch.setattr(torch.cuda, "cudart", lambda: Driver(answer=2))
    with pytest.raises(PinError, match="4096 bytes cannot be pinned: CUDA answers 2"):
        Pinned(bytearray(4096))


@pytest.mark.parametrize(("answer", "pins"), [(0, 1), (2, 0)])
def test_a_server_on_a_gpu_pins_the_memory_of_its_cache_server(answer, pins, monkeypatch, caplog):
    """Through the options of `kvproof serve`; the driver may refuse, which costs no request."""
    opened: dict[str, object] = {}
    monkeypatch.setattr(remote, "open_remote", lambda url, **given: opened.update(given))
    options = ServeOptions(
        model="symbolic", device="cuda", host_tier="64", weights="w", remote="ipc:///nobody"
    )
    models.symbolic(options)
    driver = Driver(answer)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: driver)
    held = opened["on_map"](memoryview(bytearray(4096)))
    assert len(driver.pinned) == pins
    assert ("stays pageable" in caplog.text) != pins
    del held


def test_objects_of_pinned_memory_are_not_copied(monkeypatch):
    """On a GPU; here `is_pinned` is planted, because there is none."""
    layout = layer_groups({"l": torch.zeros(4, 2, 2, 16)}, hint=Hint(layout="nhd", page=2)).layout(
        tokens=2
    )
    mine, other = (HostObject.over(layout, bytearray([n] * layout.nbytes)) for n in (1, 2))
    staged = [HostObject.allocate(layout) for _ in range(2)]
    monkeypatch.setattr(
        torch.Tensor, "is_pinned", lambda tensor: tensor.data_ptr() == mine.raw.data_ptr()
    )
    found = object_transfer._readable(object_transfer._Part(None, None, staged), [mine, other])
    assert found == [mine, staged[1]]
    assert torch.equal(staged[1].raw, other.raw)


def test_a_client_prepares_the_memory_of_each_server_that_it_maps():
    server, mapped = LocalServer(Settings(8192)), []
    with server.client(on_map=lambda memory: mapped.append(len(memory))) as client:
        client.store({b"k" * 32: b"1"})
        client.store({b"l" * 32: b"1"})
        server.restart()
        client.store({b"k" * 32: b"1"})
    assert mapped == [8192, 8192]


def test_pages_of_a_cpu_are_not_shared_by_cuda():
    with pytest.raises(ValueError, match="l0 is on cpu, expected a GPU"):
        share({"l0": torch.zeros(4)})


def test_objects_stay_until_their_event_unless_they_are_lent():
    """A kernel may still write to them, and nobody else knows."""
    layout = layer_groups([torch.zeros((3, 4, 8))], hint=Hint(layout="latent")).layout(tokens=4)
    staging, happened = Staging(layout), set()
    staging.streams = types.SimpleNamespace(
        copies=types.SimpleNamespace(done=lambda event: event in happened)
    )
    own, lent = HostObject.allocate(layout), HostObject.over(layout, bytearray(layout.nbytes))
    staging.keep([own, lent], "first")
    staging.keep([], "second")
    assert staging._kept == [("first", [own]), ("second", [])]
    happened |= {"first", "second"}
    staging.keep([], "first")
    assert staging._kept == []
