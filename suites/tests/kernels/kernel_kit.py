"""Judging one cell of a kernel in a test: the interpreter without a GPU, the card with one."""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch", reason="the extra gpu is not installed")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton", reason="the extra gpu is not installed")

from kvproof.kernels.source import Source, cloned, is_output, tensors  # noqa: E402 - after the interpreter is chosen
from kvproof.kernels.spec import Case, Entry, Kernel, cell_name  # noqa: E402 - likewise


def same_bytes(left: torch.Tensor, right: torch.Tensor) -> bool:
    return torch.equal(
        left.contiguous().view(-1).view(torch.uint8), right.contiguous().view(-1).view(torch.uint8)
    )


def judge(kernel: Kernel, entry: Entry, case: Case, *, seed: int = 0) -> None:
    """Run one cell and fail with the reason if anything is not as it must be."""
    source = Source(seed=seed, device=DEVICE)
    problem = kernel.make(case, source)
    before = cloned(problem.arguments)
    expected = kernel.reference(case, cloned(before))
    entry.prepare(case, problem.arguments)()
    where = f"{kernel.name} {cell_name(case)}"
    after, unchanged = tensors(problem.arguments), tensors(before)
    written = {name for name in after if is_output(name, problem.outputs)}
    assert set(expected) == written
    for name in set(after) - written:
        assert same_bytes(after[name], unchanged[name]), f"{where}: {name} was changed"
    assert source.broken_canaries() == 0, f"{where}: wrote outside of its tensors"
    limit = kernel.tolerance(case)
    seen = kernel.judged(case, problem.arguments, {name: after[name] for name in written})
    for name in written:
        close(seen[name], expected[name], limit, f"{where}: {name}")


def close(actual: torch.Tensor, expected: torch.Tensor, limit: object, where: str) -> None:
    if not limit.relative:
        assert same_bytes(actual, expected), f"{where}: bytes differ"
        return
    have, want = actual.double(), expected.double()
    assert torch.equal(have.isnan(), want.isnan()), f"{where}: NaN where there should be none"
    have, want = have.nan_to_num(), want.nan_to_num()
    error = (have - want).norm() / want.norm().clamp_min(1e-30)
    assert error <= limit.relative, f"{where}: error {error:.2e}, allowed {limit.relative:.2e}"
    worst = (have - want).abs().max() / want.abs().max().clamp_min(1e-30)
    assert worst <= limit.worst, f"{where}: worst {worst:.2e}, allowed {limit.worst:.2e}"
