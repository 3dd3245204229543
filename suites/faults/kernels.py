"""Judge one fault of a kernel: run its cells in Triton's interpreter until one is wrong."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator

from kvproof.harness.records.fault_events import FaultJudged, Kill
from kvproof.kernels.spec import Case, cell_name
from kvproof.suites.faults.catalogue import KERNELS, PlantedFault
from kvproof.suites.faults.verdict import judged

ORACLE = "reference in float64"


def judge(fault: PlantedFault, *, progress: Callable[[int], None]) -> FaultJudged:
    """Check the cells of the fault's kernel as `kvproof sweep` does on a CPU."""
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported
    begin = time.monotonic()
    done, kill, checked = 0, None, _checked(fault.property)
    progress(0)
    for case, reason in checked:
        done += 1
        progress(done)
        if reason:
            kill = Kill(
                suite=KERNELS,
                property=fault.property,
                oracle=ORACLE,
                sentence=f"{cell_name(case)}: {reason}",
                cases=done,
                seconds=round(time.monotonic() - begin, 3),
                size=1,
            )
            break
    reason = "" if kill else f"all {done} cells are right"
    return judged(fault, kill, reason=reason, cases=done, seconds=time.monotonic() - begin)


def _checked(name: str) -> Iterator[tuple[Case, str]]:
    """Check one case after the other; yields each with its error. Imports first."""
    from kvproof.harness.sweep.correctness import check
    from kvproof.kernels.registry import kernel, provider

    subject, entry = kernel(name), provider("kvproof").kernels[name]
    cells = list(subject.cells["cpu"]())
    random.Random(0).shuffle(cells)  # noqa: S311 - a reproducible order in which axes are mixed

    def wrong(case: Case) -> str:
        cell = check(subject, entry, case, seeds=(0,), again=False, device="cpu")
        return "" if cell.outcome in ("ok", "unsupported") else cell.reason or cell.outcome

    return ((case, wrong(case)) for case in cells)
