"""Judging one cell of a kernel in a test: the interpreter without a GPU, the card with one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

import pytest

torch = pytest.importorskip("torch", reason="the extra gpu is not installed")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton", reason="the extra gpu is not installed")
HOPPER = 232_448
"""Bytes of shared memory that a program may have."""

from kvproof.kernels.source import Source, cloned, is_output, tensors  # noqa: E402 - after the interpreter is chosen
from kvproof.kernels.spec import Case, Entry, Kernel, cell_name  # noqa: E402 - likewise


def same_bytes(left: torch.Tensor, right: torch.Tensor) -> bool:
    return torch.equal(
        left.contiguous().view(-1).view(torch.uint8), right.contiguous().view(-1).view(torch.uint8)
    )


def fit_a_hopper(launches: Sequence[Mapping[str, object]]) -> None:
    """Compile launches for a Hopper GPU in a process of its own, for here Triton interprets."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    program = "kvproof.suites.tests.kernels.hopper_compiles"
    done = subprocess.run(
        [sys.executable, "-m", program, json.dumps(launches)],
        env=environment, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    used = json.loads(done.stdout)
    assert len(used) == len(launches) > 0
    assert all(0 < each <= HOPPER for each in used), used


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
