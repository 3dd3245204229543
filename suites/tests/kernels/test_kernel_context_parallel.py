"""Decode over contexts that are divided among ranks."""

from __future__ import annotations

import multiprocessing
from functools import partial

import pytest

from kvproof.suites.tests.kernels.kernel_kit import DEVICE, close, torch

from kvproof.kernels.checks import ArgumentError  # isort: skip - after the interpreter is chosen
from kvproof.kernels.context_parallel import context_parallel_decode, owned_lengths, owned_tokens  # isort: skip - likewise
from kvproof.suites.tests.lab import context_parallel as measure  # isort: skip - likewise
from kvproof.kernels.context_parallel.launch import part_of_rank  # isort: skip - likewise
from kvproof.suites.tests.lab.context_parallel import MOST_ERROR, main, of_rank  # isort: skip - likewise
from kvproof.kernels.paged_decode import sweep  # isort: skip - likewise
from kvproof.kernels.paged_decode.cells import cell  # isort: skip - likewise
from kvproof.kernels.paged_decode.torch_reference import paged_decode_torch  # isort: skip - likewise
from kvproof.kernels.part_merge import merge_parts  # isort: skip - likewise
from kvproof.kernels.source import Source  # isort: skip - likewise

USUAL = {"page": 4, "head_dim": 16, "heads": 4, "kv_heads": 2, "batch": 5, "context": 30,
         "lengths": "edges"}  # fmt: skip


def case_of(**axes):
    case = cell(**{**USUAL, **axes})
    made = sweep.KERNEL.make(case, Source(seed=3, device=DEVICE)).arguments
    sums = torch.full(made["out"].shape[:3], float("nan"), device=DEVICE)
    return case, made, sums


def expected(made, sums):
    out, whole = torch.empty_like(made["out"], dtype=torch.float64), sums.double()
    used = {name: value for name, value in made.items() if name not in ("out", "tables_ready")}
    paged_decode_torch(**used, out=out, lse=whole, compute=torch.float64)
    return out, whole


@pytest.mark.parametrize(("ranks", "interleave"), [(1, 1), (2, 1), (2, 16), (3, 4), (8, 5)])
def test_every_token_lies_on_one_rank(ranks, interleave):
    lengths = torch.tensor([0, 1, 5, 16, 31, 32, 33, 200], dtype=torch.int32)
    numbers = {"interleave": interleave, "ranks": ranks}
    for number, length in enumerate(lengths.tolist()):
        of = [owned_tokens(length, **numbers, rank=rank) for rank in range(ranks)]
        assert sorted(t for tokens in of for t in tokens) == [*range(length)]
        for rank, tokens in enumerate(of):
            seen = owned_lengths(lengths, q_tokens=3, **numbers, rank=rank)[number].tolist()
            assert seen == [sum(t < length - 2 + i for t in tokens) for i in range(3)]


def test_ranks_that_do_not_exist_are_refused():
    with pytest.raises(ArgumentError, match="rank is 2 of 2, expected 0 to 1"):
        owned_tokens(5, interleave=1, ranks=2, rank=2)
    with pytest.raises(ArgumentError, match="interleave is 0"):
        owned_tokens(5, interleave=0, ranks=2, rank=1)


@pytest.mark.parametrize(
    ("ranks", "interleave", "axes"),
    [(2, 1, {"sinks": True}), (3, 4, {"q_tokens": 3, "soft_cap": 5.0}), (4, 64, {"batch": 2})],
)
def test_parts_of_ranks_are_together_the_answer_of_one(ranks, interleave, axes):
    case, made, sums = case_of(**axes)
    rows, (heads, dim) = made["q"].shape[0] * made["q"].shape[1], made["out"].shape[2:]
    parts = made["out"].new_empty((ranks, rows, heads, dim))
    all_sums = parts.new_empty(parts.shape[:3], dtype=torch.float32)
    for rank in range(ranks):
        sinks = None if rank else made["sinks"]
        given = of_rank(made, interleave=interleave, ranks=ranks, rank=rank)
        part_of_rank(**given, out=parts[rank], lse=all_sums[rank], sinks=sinks)
    found, whole = made["out"].view(rows, heads, dim), sums.view(rows, heads)
    merge_parts(parts, all_sums, out=found, out_sums=whole)
    wanted, of_all = expected(made, sums)
    close(made["out"], wanted, sweep.KERNEL.tolerance(case), "out")
    assert torch.allclose(sums.double(), of_all, atol=2e-2)


def _rank(rank, ranks, path, queue):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{path}", rank=rank, world_size=ranks
    )
    _, made, sums = case_of(sinks=True)
    given = of_rank(made, interleave=4, ranks=ranks, rank=rank)
    context_parallel_decode(**given, out=made["out"], lse=sums, sinks=made["sinks"])
    queue.put((rank, made["out"].float().numpy(), sums.numpy()))
    torch.distributed.destroy_process_group()


@pytest.mark.skipif(DEVICE == "cuda", reason="processes that use a GPU cannot be forked")
def test_two_processes_exchange_their_parts(tmp_path, monkeypatch):
    for module in ("paged_decode", "part_merge"):
        monkeypatch.setattr(f"kvproof.kernels.{module}.launch.runs_triton", lambda _: False)
    fork = multiprocessing.get_context("fork")
    queue = fork.Queue()
    ranks = [fork.Process(target=_rank, args=(r, 2, tmp_path / "group", queue)) for r in range(2)]
    for each in ranks:
        each.start()
    answers = [queue.get(timeout=30) for _ in ranks]
    for each in ranks:
        each.join()
    case, made, sums = case_of(sinks=True)
    wanted, of_all = expected(made, sums)
    for _, out, whole in answers:
        close(torch.from_numpy(out), wanted, sweep.KERNEL.tolerance(case), "out")
        assert torch.allclose(torch.from_numpy(whole).double(), of_all, atol=2e-2)


@pytest.mark.skipif(DEVICE == "cuda", reason="on GPUs it takes times, one GPU a rank")
@pytest.mark.parametrize(("allowed", "code"), [(MOST_ERROR, 0), (0.0, 1)])
def test_anyone_can_measure_it(monkeypatch, capfd, allowed, code):
    monkeypatch.setenv("TRITON_INTERPRET", "")
    started = measure.multiprocessing.start_processes
    monkeypatch.setattr(measure, "MOST_ERROR", allowed)
    monkeypatch.setattr(measure.multiprocessing, "spawn", partial(started, start_method="fork"))
    assert main(["--ranks", "2", "--interleave", "4"]) == code
    assert capfd.readouterr().out.count("no times without a GPU, error") == len(measure.SMALL)


def test_ranks_without_a_gpu_are_refused(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(SystemExit):
        main(["--ranks", "2"])
    assert "--ranks 2: this host has 1 GPUs" in capsys.readouterr().err
